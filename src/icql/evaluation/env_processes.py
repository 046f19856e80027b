"""Environments in processes of their own: a kitchen holds the interpreter for a third of its step.

A process is a fresh interpreter that runs this module, and is spoken to in lines of JSON, which
give every number back as it was; nothing is pickled, and no script of the user's is run again. It
ends when its input does, however the process that started it ended.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
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
        self._lock = threading.Lock()  # one question at a time
        bounds = {} if signals is None else signals.as_json()
        self._send({"task": dataclasses.asdict(task), "signals": bounds})

    def begin(self) -> ProcessEnv:
        """Have an environment built; `ProcessEnv.finish` waits for it."""
        self._send({"do": "make"})
        return ProcessEnv(self)

    def answer(self) -> Any:
        """Wait for the answer to the oldest question.

        Raises:
            UserError: the environment cannot be made.
            RuntimeError: the environment failed, or its process died.
        """
        line = self._pipe(self._process.stdout).readline()
        if not line.endswith("\n"):
            code = self._process.wait()
            raise RuntimeError(f"the process of an environment died (exit code {code}).")
        said: dict[str, Any] = json.loads(line)
        if "user_error" in said:
            raise UserError(**said["user_error"])
        if "error" in said:
            raise RuntimeError(f"in the process of an environment:\n{said['error']}")
        return said

    def ask(self, **question: Any) -> Any:
        """Ask and wait for the answer."""
        with self._lock:
            self._send(question)
            return self.answer()

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

    def _send(self, question: dict[str, Any]) -> None:
        pipe = self._pipe(self._process.stdin)
        try:
            pipe.write(json.dumps(question) + "\n")
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

    def finish(self) -> ProcessEnv:
        """Wait until it is built."""
        made = self._process.answer()
        self._number = made["number"]
        self.observation_space = _box(made["observation_space"])
        self.action_space = _box(made["action_space"])
        return self

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        said = self._process.ask(do="reset", number=self._number, seed=seed)
        return np.asarray(said["observation"]), {}

    def step(self, action: Any) -> Step:
        """Advance the simulator; what else it has to say (`info`) stays there."""
        said = self._process.ask(do="step", number=self._number, action=action.tolist())
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

    def do(self, question: dict[str, Any]) -> dict[str, Any]:
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
            try:
                said = server.do(json.loads(line))
            except UserError as error:
                parts = {"what": error.what, "where": error.where, "fix": error.fix}
                said = {"user_error": parts}
            except Exception:
                said = {"error": traceback.format_exc()}
            answers.write(json.dumps(said) + "\n")
            answers.flush()
