"""The tutorial's commands run as they stand, only shorter, and its judgement is not wrong."""

from __future__ import annotations

import contextlib
import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from icql.cli import main

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
SHORT = {
    "train": ["--steps", "2000"],
    "judge": ["--updates", "200", "--seeds", "2", "--no-graph", "--json"],
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_from_a_log_to_a_judged_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (mapping,) = blocks("toml")
    told: dict[str, str] = {}
    for line in "".join(blocks("bash")).splitlines():
        first, *rest = shlex.split(line)
        if first == "python":
            monkeypatch.setattr(sys, "argv", rest)
            with contextlib.suppress(SystemExit):
                runpy.run_path(str(ROOT / rest[0]), run_name="__main__")
            told[rest[1]] = capsys.readouterr().out
            continue
        name = rest[1] if rest[0] == "data" else rest[0]
        assert main([*rest, *SHORT.get(name, [])]) == 0
        told[name] = capsys.readouterr().out
        if name == "init":
            assert (tmp_path / "plant.csv.toml").is_file()
            (tmp_path / "plant.csv.toml").write_text(mapping)
    assert "ok: 7,140 transitions" in told["validate"]
    verdict = json.loads(told["judge"])["verdict"]
    truth = dict(re.findall(r"(\w+) +(-?[\d.]+) EUR", told["play"]))
    better = float(truth["policy"]) > float(truth["operators"])
    assert better  # with what is logged, a short training suffices
    assert verdict != "worse"  # and a short judgement may be unsure, but not wrong
    assert (tmp_path / "plant.png").is_file()
