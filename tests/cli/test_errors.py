"""Whatever a disk or a name does: one message and exit code 2; the traceback for who asks."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from icql.cli import main


def broken(*_: Any) -> None:
    raise PermissionError(13, "Permission denied", "/a/b")


@pytest.mark.parametrize("debug", ["", "0", "1"])
def test_errors_of_the_system_are_one_message(
    debug: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ICQL_DEBUG", debug)
    monkeypatch.setattr("icql.cli.algos.Algos.execute", broken)
    assert main(["algos", "--json"]) == 2
    said = capsys.readouterr()
    assert said.err.splitlines()[-1].startswith("icql: error: /a/b: Permission denied.")
    assert ("Traceback" in said.err) is (debug == "1")
    assert json.loads(said.out)["error"]["where"] == "/a/b"


def test_control_characters_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", "a\x1b[2Jb"]) == 2
    said = capsys.readouterr().err
    assert "'a\\x1b[2Jb': has control characters in it" in said
    assert "\x1b" not in said


def test_a_tab_may_be_a_separator(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "init", "missing.csv", "--separator", "\t"]) == 2
    assert "there is no such file" in capsys.readouterr().err


class XlaRuntimeError(RuntimeError):
    """As XLA's is called."""


def caused(
    error: Exception, cause: Exception | None = None, context: Exception | None = None
) -> Exception:
    error.__cause__, error.__context__ = cause, context
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 7.45 GiB"),
        XlaRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."),
        ImportError("x.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        Exception("Could not allocate memory"),  # MuJoCo
        ImportError("Exception caught: std::bad_alloc"),  # ONNX Runtime
        caused(ImportError("x did not work"), cause=MemoryError()),
        caused(ImportError("x did not work"), context=MemoryError()),
    ],
)
def test_memory_that_does_not_suffice_is_one_message(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hungry(*_: Any) -> None:
        raise error

    monkeypatch.setattr("icql.cli.algos.Algos.execute", hungry)
    assert main(["algos"]) == 2
    assert capsys.readouterr().err.startswith("icql: error: memory does not suffice (")


def test_a_module_that_does_not_come_up_lacks_memory_where_that_is_limited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def begun(*_: Any) -> None:
        raise ImportError("Encountered an error while initializing the extension.")

    monkeypatch.setattr("icql.cli.algos.Algos.execute", begun)
    limited = sys.modules["icql.cli.main"]  # the package has a function of that name
    monkeypatch.setattr(limited, "limits", lambda: "ulimit -v allows 1 GB")
    assert main(["algos"]) == 2
    assert "memory does not suffice (Encountered" in capsys.readouterr().err
    monkeypatch.setattr(limited, "limits", lambda: "")
    with pytest.raises(ImportError, match="Encountered"):
        main(["algos"])


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*_: Any) -> None:
        raise RuntimeError("a mistake in the program")

    monkeypatch.setattr("icql.cli.algos.Algos.execute", mistaken)
    with pytest.raises(RuntimeError, match="a mistake"):
        main(["algos"])
