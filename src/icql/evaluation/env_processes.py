"""Environments in processes of their own: threads of one process wait for its interpreter.

A process is a fresh interpreter that runs this module; nothing is pickled, and no script of the
user's is run again. It ends when its input does, however the process that started it ended. It is
spoken to in lines of JSON. One line asks for a step of several of its environments, which with a
line for each would wait for us in between; behind it come the actions as bytes, and behind the
answer what was seen, for numbers that are written out cost the asking process more than the policy.
A line may wait for its turn, so that a process is never idle.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import IO, Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from icql.data.signals import Signals
from icql.data.tasks import Task
from icql.errors import UserError
from icql.evaluation.environments import Env, Step, make_env

Answer: TypeAlias = tuple[dict[str, Any], NDArray[Any] | None]

ACTION = np.float32  # of the bytes behind a question
SEEN = np.float64  # of those behind an answer: an observation, reward, terminated, truncated


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
            env=os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"},
        )
        self._steps: list[tuple[int, NDArray[np.float32]]] = []  # not sent yet
        self._asked: set[int] = set()  # environments that were asked, and not answered for yet
        self._answers: dict[int, Any] = {}  # read, and not taken yet
        bounds = {} if signals is None else signals.as_json()
        self._write({"task": dataclasses.asdict(task), "signals": bounds})

    @property
    def waiting(self) -> bool:
        """Whether anything was asked that nobody took the answer to, as after an error."""
        return bool(self._asked)

    def make(self, number: int) -> ProcessEnv:
        """Have an environment built; `ProcessEnv.finish` waits for it."""
        self.ask(number, {"do": "make"})
        return ProcessEnv(self, number)

    def ask(self, number: int, question: dict[str, Any]) -> None:
        """Ask an environment; one at a time."""
        self._asked.add(number)
        self._write(question | {"number": number})

    def post_step(self, number: int, action: NDArray[np.float32]) -> None:
        """Ask for a step with the next line."""
        self._asked.add(number)
        self._steps.append((number, action))

    def send(self) -> None:
        """Ask for the steps that were posted."""
        if self._steps:
            numbers, actions = zip(*self._steps, strict=True)
            self._steps = []
            self._write({"do": "step", "numbers": numbers}, np.stack(actions).astype(ACTION))

    def answer(self, number: int) -> Any:
        """Wait for an environment's answer.

        Raises:
            UserError: the environment cannot be made.
            RuntimeError: the environment failed, or its process died.
        """
        while number not in self._answers:
            self._read()
        said = self._answers.pop(number)
        self._asked.discard(number)
        if isinstance(said, np.ndarray):
            return said
        if "user_error" in said:
            raise UserError(**said["user_error"])
        if "error" in said:
            failed = RuntimeError(f"in the process of an environment: {said['error']}")
            failed.add_note(said["trace"])
            raise failed
        return said

    def _read(self) -> None:
        """Read the next line, and what stands behind it."""
        pipe = self._pipe(self._process.stdout)
        line = pipe.readline()
        said: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {"bytes": 1}
        behind = pipe.read(said.get("bytes", 0))
        if len(behind) < said.get("bytes", 0):
            code = self._process.wait()
            raise RuntimeError(f"the process of an environment died (exit code {code}).")
        if behind:
            rows = np.frombuffer(behind, SEEN).reshape(len(said["numbers"]), -1)
            self._answers.update(zip(said["numbers"], rows, strict=True))
        else:
            self._answers[said["number"]] = said

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

    def _write(self, said: dict[str, Any], behind: NDArray[Any] | None = None) -> None:
        try:
            _put(self._pipe(self._process.stdin), said, behind)
        except BrokenPipeError:
            return  # `answer` says so

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe


class ProcessEnv(gymnasium.Env[Any, Any]):
    """An environment that lives in another process."""

    def __init__(self, process: EnvProcess, number: int) -> None:
        self._process, self._number = process, number
        self._asked = False

    def finish(self) -> ProcessEnv:
        """Wait until it is built."""
        made = self._process.answer(self._number)
        self.observation_space = _box(made["observation_space"])
        self.action_space = _box(made["action_space"])
        return self

    def post_reset(self, seed: int) -> None:
        """Ask for a new episode; `reset` then waits for its beginning."""
        self._process.ask(self._number, {"do": "reset", "seed": seed})
        self._asked = True

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        if not self._asked:
            self._process.ask(self._number, {"do": "reset", "seed": seed})
        self._asked = False
        return np.asarray(self._process.answer(self._number)["observation"]), {}

    def post_step(self, action: NDArray[np.float32]) -> None:
        """Ask for a step with the process's next line; `step` then waits for its end."""
        self._process.post_step(self._number, action)
        self._asked = True

    def step(self, action: Any) -> Step:
        """Advance the simulator; what else it has to say (`info`) stays there."""
        if not self._asked:
            self._process.post_step(self._number, np.asarray(action, np.float32))
            self._process.send()
        self._asked = False
        seen = self._process.answer(self._number)
        reward, terminated, truncated = seen[-3:]
        return seen[:-3], float(reward), bool(terminated), bool(truncated), {}

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
        self._envs: dict[int, Env] = {}

    def answer(self, question: dict[str, Any], pipe: IO[bytes]) -> Iterator[Answer]:
        """What to say, and what stands behind it."""
        if question["do"] != "step":
            number: int = question["number"]
            said = self._trying(self._reset if question["do"] == "reset" else self._make, question)
            yield {"number": number} | said, None
            return
        numbers = question["numbers"]
        actions = np.frombuffer(bytearray(pipe.read(question["bytes"])), ACTION)  # may be changed
        seen: dict[int, NDArray[np.float64]] = {}
        for number, action in zip(numbers, actions.reshape(len(numbers), -1), strict=True):
            said = self._trying(self._step, number, action)
            if "seen" in said:
                seen[number] = said["seen"]
            else:
                yield {"number": number} | said, None
        if seen:
            yield {"numbers": list(seen)}, np.stack(list(seen.values()))

    def _trying(self, do: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
        try:
            return do(*given)
        except UserError as error:
            return {"user_error": {"what": error.what, "where": error.where, "fix": error.fix}}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}

    def _reset(self, question: dict[str, Any]) -> dict[str, Any]:
        observation, _ = self._envs[question["number"]].reset(seed=question["seed"])
        return {"observation": observation.tolist()}

    def _step(self, number: int, action: NDArray[np.float32]) -> dict[str, Any]:
        observation, reward, terminated, truncated, _ = self._envs[number].step(action)
        ended = [float(reward), float(terminated), float(truncated)]
        return {"seen": np.concatenate([observation, ended], dtype=SEEN)}

    def _make(self, question: dict[str, Any]) -> dict[str, Any]:
        env = self._envs[question["number"]] = make_env(self._task, self._signals)
        found: dict[str, Any] = {}
        for name in ("observation_space", "action_space"):
            box: Any = getattr(env, name)
            ends = {"low": box.low.tolist(), "high": box.high.tolist()}
            found[name] = ends | {"dtype": str(box.dtype)}
        return found


def serve() -> None:
    """Answer questions until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # whatever a simulator prints is not taken for an answer
        questions = sys.stdin.buffer
        server = _Server(json.loads(questions.readline()))
        for line in iter(questions.readline, b""):
            for said, behind in server.answer(json.loads(line), questions):
                _put(answers, said, behind)


def _put(pipe: IO[bytes], said: dict[str, Any], behind: NDArray[Any] | None) -> None:
    """Write a line, and the bytes of an array behind it."""
    extra = {} if behind is None else {"bytes": behind.nbytes}
    pipe.write(json.dumps(said | extra).encode() + b"\n")
    if behind is not None:
        pipe.write(behind.tobytes())
    pipe.flush()
