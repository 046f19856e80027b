"""Environments in processes of their own: threads of one process wait for its interpreter.

A process is a fresh interpreter that runs this module, and is spoken to in lines of JSON, which
give every number back as it was; nothing is pickled, and no script of the user's is run again. It
ends when its input does, however the process that started it ended. A line holds what is asked of
all of its environments at once: with a line for each they would wait for us in between.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import traceback
from collections import deque
from typing import IO, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from icql.data.signals import Signals
from icql.data.tasks import Task
from icql.errors import UserError
from icql.evaluation.environments import Env, Step, make_env


def cores() -> int:
    """Cores that this process may use: those it is bound to, or fewer by OMP_NUM_THREADS.

    Ray and Slurm say by that variable how many a task was given.
    """
    bound = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    said = os.environ.get("OMP_NUM_THREADS", "")
    return min(bound, int(said)) if said.isdigit() and int(said) > 0 else bound


class EnvProcess:
    """A process that builds and steps environments of one task, one after another."""

    def __init__(self, task: Task, signals: Signals | None) -> None:
        # -P: no module of the working directory is taken for one of ours
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"},
        )
        self._posted: list[dict[str, Any]] = []  # not sent yet
        self._sent = 0  # lines whose answers were not read yet
        self._answers: deque[dict[str, Any]] = deque()  # read, and not taken yet
        bounds = {} if signals is None else signals.as_json()
        self._write({"task": dataclasses.asdict(task), "signals": bounds})

    @property
    def waiting(self) -> bool:
        """Whether anything was asked that nobody took the answer to, as after an error."""
        return bool(self._posted or self._sent or self._answers)

    def make(self) -> ProcessEnv:
        """Have an environment built; `ProcessEnv.finish` waits for it."""
        self.post({"do": "make"})
        self.send()
        return ProcessEnv(self)

    def post(self, question: dict[str, Any]) -> None:
        """Ask a question with the next line."""
        self._posted.append(question)

    def send(self) -> None:
        """Ask what was posted."""
        if self._posted:
            self._write(self._posted)
            self._posted, self._sent = [], self._sent + 1

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to the oldest question.

        Raises:
            UserError: the environment cannot be made.
            RuntimeError: the environment failed, or its process died.
        """
        if not self._answers:
            line = self._pipe(self._process.stdout).readline()
            if not line.endswith("\n"):
                code = self._process.wait()
                raise RuntimeError(f"the process of an environment died (exit code {code}).")
            self._answers.extend(json.loads(line))
            self._sent -= 1
        said = self._answers.popleft()
        if "user_error" in said:
            raise UserError(**said["user_error"])
        if "error" in said:
            failed = RuntimeError(f"in the process of an environment: {said['error']}")
            failed.add_note(said["trace"])
            raise failed
        return said

    def close(self) -> None:
        """End the process; what it holds goes with it."""
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                self._pipe(pipe).close()
            except BrokenPipeError:  # it has died, with something left to be sent
                continue
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, said: Any) -> None:
        pipe = self._pipe(self._process.stdin)
        try:
            pipe.write(json.dumps(said) + "\n")
            pipe.flush()
        except BrokenPipeError:
            return  # `answer` says so

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


class ProcessEnv(gymnasium.Env[Any, Any]):
    """An environment that lives in another process."""

    def __init__(self, process: EnvProcess) -> None:
        self._process, self._number = process, -1
        self._stepping = False

    def finish(self) -> ProcessEnv:
        """Wait until it is built."""
        made = self._process.answer()
        self._number = made["number"]
        self.observation_space = _box(made["observation_space"])
        self.action_space = _box(made["action_space"])
        return self

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        assert not self._process.waiting  # else another's answer would be taken for this one's
        self._process.post({"do": "reset", "number": self._number, "seed": seed})
        self._process.send()
        return np.asarray(self._process.answer()["observation"]), {}

    def post_step(self, action: Any) -> None:
        """Ask for a step with the process's next line; `step` then waits for its end."""
        self._process.post({"do": "step", "number": self._number, "action": action.tolist()})
        self._stepping = True

    def step(self, action: Any) -> Step:
        """Advance the simulator; what else it has to say (`info`) stays there."""
        if not self._stepping:
            self.post_step(action)
            self._process.send()
        self._stepping = False
        said = self._process.answer()
        observation = np.asarray(said["observation"])
        return observation, said["reward"], said["terminated"], said["truncated"], {}

    def close(self) -> None:
        """Nothing: its process closes it."""


def _box(said: dict[str, Any]) -> spaces.Box:
    kind: Any = np.dtype(said["dtype"])
    return spaces.Box(np.asarray(said["low"], kind), np.asarray(said["high"], kind), dtype=kind)


class _Server:
    """The other side: builds environments, and does with them what it is asked for."""

    def __init__(self, told: dict[str, Any]) -> None:
        task: dict[str, Any] = told["task"]
        tuples = {name: tuple(value) for name, value in task.items() if isinstance(value, list)}
        self._task = Task(**task | tuples)
        self._signals = Signals.from_json(told["signals"], "signals")
        self._envs: list[Env] = []

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._do(question)
        except UserError as error:
            return {"user_error": {"what": error.what, "where": error.where, "fix": error.fix}}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}

    def _do(self, question: dict[str, Any]) -> dict[str, Any]:
        if question["do"] == "make":
            return self._make()
        env = self._envs[question["number"]]
        if question["do"] == "reset":
            return {"observation": env.reset(seed=question["seed"])[0].tolist()}
        action = np.asarray(question["action"], np.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        return {
            "observation": observation.tolist(),
            "reward": float(reward),
            "terminated": bool(terminated),
            "truncated": bool(truncated),
        }

    def _make(self) -> dict[str, Any]:
        self._envs.append(make_env(self._task, self._signals))
        found: dict[str, Any] = {"number": len(self._envs) - 1}
        for name in ("observation_space", "action_space"):
            box: Any = getattr(self._envs[-1], name)
            ends = {"low": box.low.tolist(), "high": box.high.tolist()}
            found[name] = ends | {"dtype": str(box.dtype)}
        return found


def serve() -> None:
    """Answer questions until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # whatever a simulator prints is not taken for an answer
        server = _Server(json.loads(sys.stdin.readline()))
        for line in sys.stdin:
            said = [server.answer(question) for question in json.loads(line)]
            answers.write(json.dumps(said) + "\n")
            answers.flush()
