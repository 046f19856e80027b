"""Options that cannot be read: one line, exit code 2, JSON where it was asked for."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from icql.cli import main
from icql.cli.judge import Judge
from icql.cli.reading import first_part

HELP = "All options: icql train --help"


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("icql: error: ").rstrip("\n")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["train", "--data", "logs.csv"],
            f"icql train: there is no option '--data'. Did you mean --dataset? {HELP}",
        ),
        (
            ["train", "--step=100"],
            f"icql train: there is no option '--step'. Did you mean --steps? {HELP}",
        ),
        (
            ["train", "--algo", "icql", "--c-scale", "3"],
            f"icql train: there is no option '--c-scale'. Did you mean --local.c-scale? {HELP}",
        ),
        (
            ["train", "--chunk", "3"],
            f"icql train: there is no option '--chunk'. --chunk is a setting of qc. {HELP}",
        ),
        (["train", "-x"], f"icql train: there is no option '-x'. {HELP}"),
        (["train", "nowhere.csv"], f"icql train: no option takes 'nowhere.csv'. {HELP}"),
        (
            ["train", "--seeds", "3", "4", "5"],
            f"icql train: no option takes '4': --seeds takes one value, here '3'. {HELP}",
        ),
        (
            ["judge", "--no-graph", "RUN", "MORE"],
            "icql judge: no option takes 'MORE'. All options: icql judge --help",
        ),
        (
            ["train", "--steps", "x"],
            f"Error parsing --steps: invalid literal for int() with base 10: 'x'. {HELP}",
        ),
        (["train", "--seeds"], f"Missing value for argument '--seeds'. Expected 1 values. {HELP}"),
        (["train", "--algo"], "--algo: expected one argument."),
        (
            ["judge"],
            "Missing from icql judge: PATH Run folder. All options: icql judge --help",
        ),
        (
            ["bench", "run", "main", "--algo", "iql"],
            "icql bench run: there is no option '--algo'. Did you mean --algos? "
            "All options: icql bench run --help",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_read_is_one_line(capsys, argv, message):
    assert said(capsys, *argv) == message


def test_a_file_without_its_option_is_data(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("logs.csv").touch()
    assert "Data is named so: --dataset logs.csv." in said(capsys, "train", "logs.csv")
    assert "Data" not in said(capsys, "data", "show", "logs.csv", "logs.csv")


def test_machines_are_told_too(capsys):
    assert main(["judge", "RUN", "--hold-out", "0.3", "--json"]) == 2
    (error,) = json.loads(capsys.readouterr().out).values()
    assert error == {
        "what": "there is no option '--hold-out'.",
        "where": "icql judge",
        "fix": "Did you mean --held-out? All options: icql judge --help",
    }


def test_it_is_the_same_where_the_terminal_has_no_frames(capsys, monkeypatch):
    plain = said(capsys, "train", "--steps", "x")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert said(capsys, "train", "--steps", "x") == plain


def test_help_is_still_printed(capsys):
    with pytest.raises(SystemExit) as stop:
        Judge.parse("icql judge", ["--help"])
    assert stop.value.code == 0
    assert "--held-out" in capsys.readouterr().out


def test_the_first_part_of_a_frame():
    framed = "╭─ Oh ───╮\n│ one      │\n│ two.     │\n│ ──────── │\n│ three    │\n╰──────────╯"
    assert first_part(framed) == "one two."
