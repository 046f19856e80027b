"""Where memory is limited: however a library ends the process, one message and exit code 2."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux has them")

# a command whose work is given, in a process as users start it
COMMAND = """
import atexit, os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored in what `nohup` or a script's & starts
signal.signal(signal.SIGINT, signal.default_int_handler)
import icql.cli
from icql.errors import PartlyFailed, UserError
from icql.files import atomic

def work(*_):
{work}

sys.modules["icql.cli.main"].dispatch = work
sys.exit(icql.cli.main())
"""
# a signal that comes just before a sleep does not cut it short: so, many short ones
WAITING = "for _ in range(600): time.sleep(0.1)"
CAUSE = "as happens where memory does not suffice. Give it more memory, or less to do"


_LEFT = ExitStack()  # what a test that fails leaves behind is ended, and its pipes are closed


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    with _LEFT:
        yield


def started(work: str, limit: str = "", **env: str) -> subprocess.Popen[str]:
    code = COMMAND.format(work="\n".join(f"    {line}" for line in work.splitlines()))
    shell = f'{limit}\nexec "$0" "$@"'
    given = {"ICQL_SUPERVISE": "" if limit else "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        ["bash", "-c", shell, sys.executable, "-c", code, "algos"],
        env=os.environ | {"ICQL_DEBUG": ""} | given | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _LEFT.enter_context(process)
    _LEFT.callback(process.kill)
    return process


def ended(work: str, limit: str = "", **env: str) -> tuple[int, str, str]:
    process = started(work, limit, **env)
    out, said = process.communicate(timeout=60)
    return process.returncode, out, said


@pytest.mark.parametrize(
    ("work", "how"),
    [
        ("os.abort()", "a library ended the process (SIGABRT)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "a library ended the process (SIGSEGV)"),
        ("os.kill(os.getpid(), signal.SIGBUS)", "a library ended the process (SIGBUS)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the system ended the process (SIGKILL)"),
        ("os._exit(127)", "a library ended the process (exit code 127)"),
        ("os._exit(1)", "a library ended the process (exit code 1)"),
        ("os._exit(0)", "a library ended the process (exit code 0)"),
    ],
)
@pytest.mark.parametrize("debug", ["", "1"])
def test_a_death_is_one_message(work: str, how: str, debug: str) -> None:
    code, _, said = ended(f"os.write(2, b'terminate called\\n')\n{work}", ICQL_DEBUG=debug)
    *noise, message = said.splitlines()
    assert code == 2
    assert message.startswith(f"icql: error: {how}, {CAUSE}")
    assert noise == (["terminate called"] if debug else [])


def test_no_memory_for_a_message_is_one_message() -> None:
    broken = "sys.modules['icql.cli.main']._say = work"
    code, _, said = ended(f"{broken}\nraise MemoryError")
    assert code == 2
    assert said.startswith("icql: error: memory does not suffice. Give it more memory, or less")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("work", "code", "words"),
    [
        ("pass", 0, ["noise"]),
        ("print('said', file=sys.stderr)", 0, ["said", "noise"]),
        ("raise UserError('It is wrong.')", 2, ["icql: error: It is wrong."]),
        ("raise PartlyFailed('One failed.', {})", 1, ["icql: error: One failed.", "noise"]),
        ("sys.exit(3)", 3, ["noise"]),
        ("atexit.register(os.abort)", 0, ["noise"]),  # all was done by then
        ("os.kill(os.getpid(), signal.SIGHUP)", -signal.SIGHUP, []),
    ],
)
def test_every_other_end_is_as_without_a_parent(work: str, code: int, words: list[str]) -> None:
    got, _, said = ended(f"os.write(2, b'noise\\n')\n{work}")
    assert got == code
    assert said.splitlines() == words


@pytest.mark.parametrize("debug", ["", "1"])
def test_tracebacks_of_threads_and_modules_are_noise_beside_a_message(debug: str) -> None:
    threads = "thread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()"
    module = "sys.excepthook(KeyError, KeyError('inner'), None)"  # as PyErr_Print does
    work = f"import threading\n{threads}\n{module}\nraise MemoryError"
    code, _, said = ended(work, ICQL_DEBUG=debug)
    assert code == 2
    assert "icql: error: memory does not suffice" in said
    assert ("ZeroDivisionError" in said) == ("inner" in said) == (debug == "1")
    assert debug or said.count("\n") == 1


def test_a_mistake_in_the_program_is_shown() -> None:
    code, _, said = ended("raise KeyError('a mistake')")
    assert code == 1
    assert said.startswith("Traceback")
    assert "KeyError: 'a mistake'" in said


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, -1)]
)
def test_signals_reach_the_child_once(number: int, code: int, group: bool) -> None:
    process = started(f"print('begun', flush=True)\n{WAITING}")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    (os.killpg if group else os.kill)(process.pid, number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == code
    assert said == ("" if code < 0 else "icql: interrupted.\n")


@pytest.mark.parametrize("supervise", ["0", "1"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_a_command_that_is_done_changes_nothing(number: int, supervise: str) -> None:
    kill = f"lambda *_, kill=os.kill, own=os.getpid: kill(own(), {int(number)})"
    down = f"class Down:\n    __del__ = {kill}\nsys.down = Down()"  # when handlers are forgotten
    work = f"atexit.register({kill})\n{down}"
    assert ended(work, ICQL_SUPERVISE=supervise) == (0, "", "")


@pytest.mark.parametrize("supervise", ["0", "1"])
def test_an_interrupted_command_does_not_crash_while_it_is_taken_down(supervise: str) -> None:
    """As XLA does, which is still computing: after all that wants to be closed is closed."""
    down = "class Down:\n    def __del__(self, abort=os.abort): abort()\nsys.down = Down()"
    closed = "atexit.register(print, 'closed')"
    process = started(
        f"{down}\n{closed}\nprint('begun', flush=True)\n{WAITING}", ICQL_SUPERVISE=supervise
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.terminate()
    assert process.communicate(timeout=30) == ("closed\n", "icql: interrupted.\n")
    assert process.returncode == 143


def test_a_command_that_does_not_come_to_its_end_can_be_ended() -> None:
    ends = "print('ends', flush=True) or [time.sleep(0.1) for _ in range(600)]"
    work = f"atexit.register(lambda: {ends})"
    process = started(work, ICQL_SUPERVISE="0")
    assert process.stdout is not None
    assert process.stdout.readline() == "ends\n"
    time.sleep(0.6)  # more than `ONCE`
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 143


def test_a_child_dies_with_its_parent() -> None:
    process = started("print(os.getpid(), flush=True)\ntime.sleep(60)")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert child != process.pid
    process.kill()
    process.wait()
    end = time.monotonic() + 10
    while Path(f"/proc/{child}/stat").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not Path(f"/proc/{child}/stat").exists()
    process.communicate()


def test_what_was_being_written_is_taken_away(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("kept")
    one = f"with atomic(Path({str(tmp_path / 'new' / 'folder' / 'x')!r})) as path:"
    two = f"    with atomic(Path({str(tmp_path / 'y')!r})) as other:"
    code, _, said = ended(f"{one}\n{two}\n        os.abort()")
    assert code == 2, said
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


LIMITS = ["ulimit -v 4000000", "ulimit -d 4000000"]


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_has_a_parent(limit: str) -> None:
    code, out, said = ended("print(os.getppid())\nos.abort()", limit)
    assert code == 2
    assert said.rstrip().endswith(f"Here, {limit.rpartition(' ')[0]} allows 4.10 GB.")
    code, out, _ = ended("print(os.getpid() == int(os.environ['OWN']))", f"{limit}; export OWN=$$")
    assert (code, out) == (0, "False\n")


@pytest.mark.parametrize(
    ("limit", "asked"), [("", ""), ("", "0"), (LIMITS[0], "0")], ids=["none", "0", "0 of a limit"]
)
def test_elsewhere_there_is_one_process(limit: str, asked: str) -> None:
    work = "print(os.getpid() == int(os.environ['OWN']))"
    code, out, _ = ended(work, f"{limit}\nexport OWN=$$", ICQL_SUPERVISE=asked)
    assert (code, out) == (0, "True\n")


@pytest.mark.parametrize("megabytes", [30, 60, 100, 150, 300])
def test_commands_where_there_is_hardly_any_memory(megabytes: int) -> None:
    """Where exactly it begins to suffice is the machine's matter."""
    command = f'ulimit -v {megabytes}000; exec "$0" -m icql data list --json'
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["bash", "-c", command, sys.executable], env=env, capture_output=True, text=True
    )
    assert done.returncode in ((2,) if megabytes < 80 else (0, 2))
    if done.returncode == 2:
        [message] = done.stderr.splitlines()
        assert message.startswith("icql: error: ")
        assert "memory does not suffice" in message
        assert f"ulimit -v allows {megabytes * 1.024e-3:.2f} GB." in message
        assert done.stdout.startswith('{"error": ')
