"""How commands end where memory is short, or where they are stopped; minutes.

    python -m attacks.endings --memory 0.3 0.6 1 2 4 8      every command under `ulimit -v`, in GB
    python -m attacks.endings --memory 0.3 1 --kind data    … under `ulimit -d`
    python -m attacks.endings --signals 5                   every command, five times per signal
    python -m attacks.endings --signals 20 --only judge

A command ends well with all its work done, or with one message and the exit code that goes with
it; nothing that has its final name is half-written, and where the process could still act no
temporary is left. Exit code 1 where one did not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from attacks.kills import ICQL, SHORT, TINY
from attacks.made import made_steps

PATIENCE = 240.0
SERVING = "serving "  # what a server says when it answers
STARTS = 1.5  # seconds, on a busy machine
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Ending(NamedTuple):
    """How a process ended, and what is wrong with that (nothing: an empty list)."""

    code: int
    said: str
    wrong: list[str]


def commands(here: Path, out: Path) -> dict[str, list[str]]:
    """Every command that takes time: what it reads lies in `here`, what it writes in `out`."""
    log, run, bench = str(here / "log.npz"), str(out / "run"), str(out / "bench")
    train = ["train", "--dataset", log, "--task", "hopper", *TINY, *SHORT]
    local = ["--critic", "local", "--hidden", "8", "8", "--context.k", "3", "--episodes", "0"]
    what = ["main", "--tasks", "hopper@log", "--dataset", f"hopper@log={log}", "--algos", "bc"]
    what += ["--preset", "quick", "--seeds", "2", "--steps", "6", "--episodes", "1"]
    collect = ["data", "collect", "hopper", "--level", "random", "--transitions", "200"]
    collect += ["--steps", "300"]
    fitted = ["--updates", "30", "--seeds", "2"]
    return {
        "data validate": ["data", "validate", log],
        **{
            f"data convert {kind}": ["data", "convert", log, str(out / f"log.{kind}")]
            for kind in ("hdf5", "npz", "parquet", "icql")
        },
        "data coverage": ["data", "coverage", log, "--k", "5", "--out", str(out / "coverage")],
        "data collect": [*collect, "--out", str(out / "collected")],
        "train": [*train, "--algo", "bc", "--episodes", "1", "--out", str(out / "new")],
        "train, with contexts": [*train, "--algo", "iql", *local, "--out", str(out / "new")],
        "evaluate": ["evaluate", run, "--episodes", "2"],
        "judge": ["judge", run, *fitted],
        "select": ["select", run, str(here / "other"), *fitted, "--no-graph"],
        "compare": ["compare", run, str(here / "other"), "--out", str(out / "compare.html")],
        "inspect": ["inspect", run, "--page"],
        "export": ["export", run, str(out / "policy.onnx")],
        "serve": ["serve", str(here / "policy.onnx"), "--port", "0"],
        "bench run": ["bench", "run", *what, "--out", str(out / "again")],
        "bench report": ["bench", "report", bench, "--out", str(out / "report.html")],
    }  # fmt: skip


def prepare(here: Path) -> None:
    """Make the log, two runs, a benchmark folder and an exported policy."""
    from icql.data.formats.npz import write_npz

    write_npz(here / "log.npz", made_steps(1500), {"task": "hopper"})
    every = commands(here, here)
    for new in ("run", "other"):
        _done(here, every["train"])
        (here / "new").rename(here / new)
    _done(here, every["bench run"])
    (here / "again").rename(here / "bench")
    _done(here, every["export"])


def _done(here: Path, argv: list[str]) -> None:
    subprocess.run([*ICQL, *argv], check=True, capture_output=True, env=_environment(here))


def _environment(out: Path) -> dict[str, str]:
    return os.environ | {"ICQL_CACHE": str(out / "cache"), "JAX_PLATFORMS": "cpu"}


@contextlib.contextmanager
def place(here: Path) -> Iterator[Path]:
    """A folder to write in, with a run and a benchmark folder of its own."""
    with tempfile.TemporaryDirectory(dir=here, prefix="out-") as name:
        for folder in ("run", "bench"):
            shutil.copytree(here / folder, Path(name) / folder)
        yield Path(name)


def ended(
    out: Path, argv: list[str], *, limit: str = "", after: float | None = None, number: int = 0
) -> tuple[int, str]:
    """Run a command, limited or sent a signal: exit code, standard error."""
    shell = f'{limit}; exec "$@"' if limit else 'exec "$@"'
    process = subprocess.Popen(
        ["bash", "-c", shell, "-", *ICQL, *argv],
        env=_environment(out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    said: list[str] = []
    served = threading.Event()

    def listen() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if line.startswith(SERVING):
                served.set()

    listener = threading.Thread(target=listen)
    listener.start()
    sent, begin = False, time.monotonic()
    while process.poll() is None:
        time.sleep(0.02)
        passed = time.monotonic() - begin
        if not sent and after is not None and passed >= after:
            sent = True
            os.kill(process.pid, number)
        elif after is None and served.is_set():  # it would serve for ever
            process.terminate()
            served.clear()
        if passed > PATIENCE:
            os.killpg(process.pid, signal.SIGKILL)
            said.append("it did not end\n")
            break
    process.wait()
    listener.join()
    return process.returncode, "".join(said)


def faults(out: Path, code: int, said: str, *, tidy: bool = True) -> list[str]:
    """What is wrong with what was said and with what is there."""
    found = []
    if "Traceback" in said:
        found.append("a traceback")
    if "it did not end" in said:
        found.append("it hung")
    messages = [x for x in said.splitlines() if x.startswith(("icql: error", "icql: interr"))]
    if len(messages) != (code != 0) and code >= 0:
        found.append(f"{len(messages)} messages")
    if tidy and (left := [path.name for path in out.rglob(".icql-tmp-*")]):
        found.append(f"left: {left}")
    found += [f"half-written: {path.name}" for path in _made(out) if not _is_whole(path)]
    return found


def _made(out: Path) -> list[Path]:
    names = ("log.*", "policy.onnx", "*.html", "run/*.html", "run/*.json", "collected/*.npz")
    return [path for name in names for path in out.glob(name)]


def _is_whole(path: Path) -> bool:
    """Whether it can be read as its readers do."""
    from icql.data.datasets import examine
    from icql.errors import UserError
    from icql.serving.policy_file import PolicyFile

    try:
        if path.suffix == ".html":
            return path.read_text().rstrip().endswith("</html>")
        if path.suffix == ".json":
            return bool(json.loads(path.read_text()))
        if path.suffix == ".onnx":
            return bool(PolicyFile(path).card)
        return bool(examine(path)[0].usable(path.name).content_hash())
    except (UserError, ValueError):
        return False


def under_memory(here: Path, sizes: list[float], kind: str, only: list[str]) -> list[list[str]]:
    """A row per command: how it ended at each size."""
    option = {"address": "-v", "data": "-d"}[kind]
    table = []
    for name in commands(here, here):
        if not any(word in name for word in only):
            continue
        row = [name]
        for size in sizes:
            with place(here) as out:
                argv = commands(here, out)[name]
                limit = f"ulimit {option} {round(size * 1e6)}"
                code, said = ended(out, argv, limit=limit)
                wrong = faults(out, code, said)
                if code not in (0, 2):
                    wrong.append(f"exit code {code}")
                row.append(_word(code, said, wrong))
                _tell(f"{name}, {size} GB: {row[-1]} {wrong or ''}", said if wrong else "")
        table.append(row)
    return table


def _word(code: int, said: str, wrong: list[str]) -> str:
    if wrong:
        return f"WRONG ({code})"
    return "done" if code == 0 else "caught" if "ended the process" in said else "said"


def under_signals(here: Path, times: int, seed: int, only: list[str]) -> list[list[str]]:
    """A row per command: how often it ended how, at random moments, for each signal."""
    table = []
    for name in commands(here, here):
        if not any(word in name for word in only):
            continue
        rng = random.Random(f"{seed} {name}")
        with place(here) as out:
            begin = time.monotonic()
            ended(out, commands(here, out)[name])
            seconds = time.monotonic() - begin
        row = [name]
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            counts: Counter[str] = Counter()
            for _ in range(times):
                with place(here) as out:
                    moment = rng.uniform(0.1, 1.0) * seconds
                    argv = commands(here, out)[name]
                    code, said = ended(out, argv, after=moment, number=number)
                    fatal = number == signal.SIGKILL
                    wrong = faults(out, 0 if fatal else code, said, tidy=not fatal)
                    asked = -number if fatal else CODES[number]
                    # while Python itself starts nobody is there to say a word: counted apart
                    unheard = not fatal and moment < STARTS and code in (-number, 130)
                    unheard = unheard and "icql:" not in said
                    if code not in (0, asked) and not unheard:
                        wrong.append(f"exit code {code}")
                    wrong = [] if unheard else wrong
                    ending = "early" if unheard else "done" if code == 0 else "stopped"
                    word = "WRONG" if wrong else ending
                    counts[word] += 1
                    if wrong:
                        _tell(f"{name}, {number.name} after {moment:.2f} s: {wrong}", said)
            row.append(", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
            _tell(f"{name}, {number.name}: {row[-1]}")
        table.append(row)
    return table


def _tell(line: str, said: str = "") -> None:
    print(f"{line}\n{said[-1500:]}".rstrip(), file=sys.stderr, flush=True)


def main() -> int:
    """Attack, and print a table in Markdown."""
    parser = argparse.ArgumentParser(
        prog="python -m attacks.endings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--memory", type=float, nargs="*", default=[], help="limits in GB")
    parser.add_argument("--kind", choices=["address", "data"], default="address")
    parser.add_argument("--signals", type=int, default=0, help="attempts per command and signal")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--only", nargs="*", default=[""], help="commands whose name holds one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="icql-endings-") as folder:
        here = Path(folder)
        prepare(here)
        if options.memory:
            head = [f"{size:g} GB" for size in options.memory]
            rows = under_memory(here, options.memory, options.kind, options.only)
        else:
            head = ["SIGINT", "SIGTERM", "SIGKILL"]
            rows = under_signals(here, options.signals, options.seed, options.only)
    for line in (["command", *head], ["---"] * (len(head) + 1), *rows):
        print(f"| {' | '.join(line)} |")
    return 1 if any("WRONG" in cell for row in rows for cell in row) else 0


if __name__ == "__main__":
    sys.exit(main())
