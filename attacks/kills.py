"""Processes killed at random moments, and started again: do they end as if nothing had happened?"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from attacks.made import made_steps
from attacks.tally import Tally

ICQL = [sys.executable, "-m", "icql"]
CHILD = [sys.executable, "-m", "attacks.child"]
TINY = ["--batch-size", "8", "--policy.hidden", "8", "8"]
SHORT = ["--steps", "40", "--evaluate-every", "20"]
FETCHED, SLOW = "hopper-medium-v2", 1.5  # seconds that the server takes
PATIENCE = 300.0


@dataclass(frozen=True)
class Work:
    """Something that is killed: what is run in a folder, and what it leaves there in the end."""

    name: str
    weight: int
    command: Callable[[Path], list[str]]
    outcome: Callable[[Path], Any]  # of a finished one; raises where it cannot be read
    half: Callable[[Path], Any] = lambda folder: None  # of a killed one: None, or as `outcome`
    seed: Callable[[Path], None] = lambda folder: None  # what has to lie there before
    env: dict[str, str] = field(default_factory=dict)


@dataclass
class Ended:
    """How a process ended."""

    code: int
    said: str
    out: str
    seconds: float


Job = tuple[Work, Tally, tuple[Path, Ended, Any], int]  # … what came out of it; the number


def attack_by_kills(
    kills: int,
    seed: int,
    folder: Path,
    tell: Callable[[str], None],
    only: str = "",
    seconds: float = math.inf,
) -> list[Tally]:
    """Kill every kind of work its share of `kills` times; returns one line of the table for each.

    After `seconds` nothing new is begun. Two are at work at once, as there are two cores on small
    machines.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _server(folder) as url:
        works = [work for work in _works(folder, url) if only in f"kill: {work.name}"]
        total = sum(work.weight for work in works)
        shares = [max(1, round(kills * work.weight / total)) for work in works]
        tallies = [Tally(f"kill: {work.name}") for work in works]
        end = time.monotonic() + seconds
        begun = [_uninterrupted(work, folder / work.name) for work in works]
        jobs = [
            (work, tally, ended, number)
            for number in range(max(shares))  # in turns: whatever is left out, all are attacked
            for work, tally, ended, share in zip(works, tallies, begun, shares, strict=True)
            if number < share
        ]
        lanes = [threading.Thread(target=_lane, args=(jobs[i::2], seed, tell, end)) for i in (0, 1)]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
    return tallies


def _lane(jobs: list[Job], seed: int, tell: Callable[[str], None], end: float) -> None:
    for work, tally, (folder, ended, expected), number in jobs:
        if time.monotonic() > end:
            return
        rng = random.Random(f"{seed} {work.name} {number}")
        place = folder / f"killed-{number}"
        try:
            _killed_once(work, place, ended.seconds, expected, rng, tally)
        except Exception as error:  # the attack itself went wrong: that is no pass
            tally.fault("traceback", f"{work.name} {number}: {type(error).__name__}: {error}")
        tell(f"{tally.name}: {tally.attempts}")
        shutil.rmtree(place, ignore_errors=True)


def _uninterrupted(work: Work, folder: Path) -> tuple[Path, Ended, Any]:
    """What comes out where nobody interferes, and how long that takes."""
    shutil.rmtree(folder, ignore_errors=True)
    whole = folder / "whole"
    whole.mkdir(parents=True)
    work.seed(whole)
    ended = _ended(_started(work, whole))
    if ended.code != 0:
        raise RuntimeError(f"{work.name} does not work at all: {ended.said[-2000:]}")
    (whole / "stdout").write_text(ended.out)
    return folder, ended, work.outcome(whole)


def _killed_once(
    work: Work, place: Path, seconds: float, expected: Any, rng: random.Random, tally: Tally
) -> None:
    """Start, kill, look at what is there, start again, compare."""
    for _ in range(20):  # until it is killed before its end
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        work.seed(place)
        process = _started(work, place)
        moment = rng.uniform(0.15, 1.0) * seconds
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moment)
        if process.poll() is None:
            break
        seconds *= 0.9
        _ended(process)
    else:
        tally.fault("lost", f"{work.name} always ended before it was killed")
        return
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    tally.attempts += 1
    if (believed := work.half(place)) is not None and believed != expected:
        tally.fault("silent", f"{work.name} killed after {moment:.2f} s: a part is believed")
        return
    again = _ended(_started(work, place))
    (place / "stdout").write_text(again.out)
    if "Traceback" in again.said:
        tally.fault("traceback", f"{work.name} killed after {moment:.2f} s: {again.said[-800:]}")
    elif again.code != 0:
        tally.fault("lost", f"{work.name} killed after {moment:.2f} s: {again.said[-800:]}")
    elif work.outcome(place) != expected:
        found = str(work.outcome(place))[:600]
        said = f"{str(expected)[:600]} became {found}"
        tally.fault("silent", f"{work.name} killed after {moment:.2f} s: {said}")
    else:
        tally.equal += 1


def _started(work: Work, folder: Path) -> subprocess.Popen[str]:
    env = os.environ | {"ICQL_CACHE": str(folder / "cache"), "JAX_PLATFORMS": "cpu"} | work.env
    env["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # compiled in a hurry: the same every time
    return subprocess.Popen(
        work.command(folder),
        cwd=Path(__file__).parents[1],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a kill takes the processes that it started as well
    )


def _ended(process: subprocess.Popen[str]) -> Ended:
    begin = time.monotonic()
    try:
        out, said = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, said = process.communicate()
        said += "\nit did not end"
    return Ended(process.returncode, said, out, time.monotonic() - begin)


def _works(folder: Path, url: str) -> list[Work]:
    """Everything that takes time and leaves something behind."""
    log = folder / "log.npz"
    run = folder / "run"
    if not run.exists():
        command = [*ICQL, "train", "--dataset", str(log), "--task", "hopper", "--algo", "bc"]
        command += [*TINY, *SHORT, "--episodes", "1", "--seeds", "2", "--out", str(run)]
        env = os.environ | {"ICQL_CACHE": str(folder / "cache")}
        subprocess.run(command, check=True, capture_output=True, env=env)

    def train(out: Path) -> list[str]:
        if (out / "run" / "run.json").exists():
            return [*ICQL, "train", "--resume", "--out", str(out / "run")]
        what = ["--dataset", str(log), "--task", "hopper", "--algo", "iql", "--critic", "local"]
        what += ["--hidden", "8", "8", "--context.k", "3", *TINY, *SHORT, "--episodes", "0"]
        what += ["--log-every", "10", "--checkpoint-every", "10"]
        return [*ICQL, "train", *what, "--out", str(out / "run")]

    def converted(name: str) -> Callable[[Path], list[str]]:
        return lambda out: [
            *ICQL, "data", "convert", str(log), str(out / name), "--force", "--json"
        ]  # fmt: skip

    def bench(out: Path) -> list[str]:
        what = ["main", "--tasks", "hopper@log", "--dataset", f"hopper@log={log}"]
        what += ["--algos", "bc", "td3bc", "--preset", "quick", "--seeds", "2"]
        what += ["--steps", "6", "--episodes", "1"]
        return [*ICQL, "bench", "run", *what, "--out", str(out / "bench")]

    return [
        Work("train", 11, train, _run_outcome, _run_half),
        *(
            Work(f"data convert {name[3:]}", 10, converted(name), _of(name), _half(name))
            for name in ("out.hdf5", "out.npz", "out.parquet", "out.icql")
        ),
        Work(
            "data collect",
            6,
            lambda out: [*CHILD, "collect", str(out)],
            _of("hopper-expert.npz"),
            _half("hopper-expert.npz"),
        ),
        Work(
            "data fetch",
            22,
            lambda out: [*ICQL, "data", "fetch", FETCHED],
            _of(f"cache/datasets/{FETCHED}.hdf5"),
            _half(f"cache/datasets/{FETCHED}.hdf5"),
            env={"ICQL_D4RL_URL": url},
        ),
        Work(
            "neighbour tables",
            16,
            lambda out: [*CHILD, "tables", str(folder / "long.npz"), str(out / "cache")],
            _tables,
        ),
        Work(
            "evaluate",
            5,
            lambda out: [*ICQL, "evaluate", str(run), "--episodes", "2", "--json"],
            lambda out: [_said(out)["returns"], _hash(run / "policy.safetensors")],
        ),
        Work("bench run", 5, bench, _records),
    ]


def _run_outcome(folder: Path) -> Any:
    """Weights, scores and values of a run; times are not among them."""
    from icql.training.run_folder import RunFolder

    run = RunFolder.open(folder / "run")
    result = run.result()
    kept = [result[name] for name in ("parameter_hash", "data_hash", "steps")]
    rows = [[row["step"], row["kind"]] for row in run.rows()]
    return [kept, rows, _hash(run.policy_path), _hash(run.critic_path)]


def _run_half(folder: Path) -> Any:
    """What a killed run is believed to be, if it is believed to be finished."""
    from icql.errors import UserError

    try:
        return _run_outcome(folder)
    except (UserError, FileNotFoundError):
        return None


def _of(name: str) -> Callable[[Path], Any]:
    """The content of a dataset."""

    def outcome(folder: Path) -> Any:
        from icql.data.datasets import examine

        findings, _ = examine(folder / name)
        return findings.usable(name).content_hash()

    return outcome


def _half(name: str) -> Callable[[Path], Any]:
    """The content of a dataset that has its final name, whatever happened."""
    return lambda folder: _of(name)(folder) if (folder / name).exists() else None


def _tables(folder: Path) -> Any:
    from icql.retrieval.cache import load

    [entry] = [path for path in (folder / "cache/neighbours").iterdir() if path.name[0] != "."]
    found = load(folder / "cache", entry.name)
    assert found is not None, "the tables are damaged"
    mean = [*found.report.mean_distance, *found.report.next_mean_distance]
    return [entry.name, found.state.tolist(), found.next_state.tolist(), np.round(mean, 9).tolist()]


def _records(folder: Path) -> Any:
    from icql.bench.records import BenchFolder

    bench = BenchFolder.open(folder / "bench")
    return {
        group.cell_key(seed): [record["cell"], record["outcome"]]
        for group in bench.groups()[0]
        for seed, record in bench.records(group)[0].items()
    }


def _said(folder: Path) -> Any:
    return json.loads((folder / "stdout").read_text())


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[str]:
    """A mirror of D4RL with one file, which it sends slowly; makes the log as well."""
    from icql.data.formats.d4rl import write_d4rl
    from icql.data.formats.npz import write_npz
    from icql.data.transitions import DataInfo, Source

    write_npz(folder / "log.npz", made_steps(1500), {"task": "hopper"})
    write_npz(folder / "long.npz", made_steps(12_000))
    write_d4rl(folder / "fetched.hdf5", Source(made_steps(6000), DataInfo("fetched"), None))
    content = (folder / "fetched.hdf5").read_bytes()

    class Slow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            self.send_response(206 if asked else 200)
            self.send_header("ETag", '"1"')
            if asked:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/*")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            piece = len(content) // 50
            with contextlib.suppress(OSError):  # whoever asked was killed
                for i in range(start, len(content), piece):
                    self.wfile.write(content[i : i + piece])
                    self.wfile.flush()
                    time.sleep(SLOW / 50)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
