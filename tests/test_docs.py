"""The README's and the documentation's examples run as they stand."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
import tomllib
from pathlib import Path

import pytest

import icql
from icql.bench.suites import suites
from icql.cli import main
from icql.cli.main import COMMANDS
from icql.data.datasets import load_steps, validate_dataset
from icql.data.formats.mapping import Columns, read_columns
from icql.inspecting import view

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_python_examples_of_the_readme_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for code in blocks(README, "python"):
        names: dict[str, object] = {}
        exec(compile(code, "README.md", "exec"), names)
        assert names["actions"].shape == (5, 3)
        assert names["values"].shape == (5,)
        assert names["layers"].shape[1] == 5


@pytest.mark.usefixtures("optimised")  # many sweeps of value iteration, compiled once
def test_the_example_of_the_page_on_evidence_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "evidence.md").read_text()
    code, callback = blocks(page, "python")
    names: dict[str, object] = {}
    exec(compile(code, "evidence.md", "exec"), names)
    assert "influence" in capsys.readouterr().out
    assert names["rings"].all()
    exec(compile(callback, "evidence.md", "exec"), {})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["5", "10"]
    for name, few in {"MAPPED": 500, "KEPT": 50, "EPISODES": 3, "EPISODE_ROWS": 300}.items():
        monkeypatch.setattr(view, name, few)  # the page itself is tested where it is made
    for line in "".join(blocks(page, "bash")).splitlines():
        assert main(shlex.split(line)[1:]) == 0, line
    assert Path("page.html").stat().st_size < 10_000_000


def test_the_commands_and_the_example_of_the_page_on_exporting_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "export.md").read_text()
    for line in "".join(blocks(page, "bash")).splitlines():
        assert main(shlex.split(line)[1:]) == 0, line
    names: dict[str, object] = {}
    for code in blocks(page, "python"):
        exec(compile(code, "export.md", "exec"), names)
    action, distance, alarm, limit = names["said"]
    assert names["stuck"].tolist() == [False] * 11
    assert (names["limits"] < 100).all()
    assert action.shape == (3, 3)
    assert alarm.all()
    assert names["rings"].all()
    assert (distance > limit).all()
    named = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert named == ["state", "action", "distance", "alarm", "limit"]
    capsys.readouterr()
    for line in "".join(blocks(page, "sh")).splitlines():  # it would serve for ever
        with pytest.raises(SystemExit):
            main([*shlex.split(line)[1:], "--help"])
        assert "usage" in capsys.readouterr().out


def commands() -> list[list[str]]:
    lines = [line for block in blocks(README, "bash") for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("icql ")]


def test_the_readme_shows_commands():
    assert len(commands()) >= 5


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_commands_of_the_readme_parse(command, capsys):
    """`--help` after the options checks every name in them without running for an hour."""
    options = [x for x in command[1:] if x != "--resume"]
    with pytest.raises(SystemExit) as exit_:
        main([*options, "--help"])
    assert exit_.value.code == 0
    assert "usage" in capsys.readouterr().out


def test_help_of_every_command(capsys):
    for name in COMMANDS:
        with contextlib.suppress(SystemExit):
            assert main([name, "--help"]) == 0
        assert f"icql {name}" in capsys.readouterr().out


def test_the_column_mapping_of_the_readme_reads_a_log(tmp_path):
    (mapping,) = blocks(README, "toml")
    (tmp_path / "logs.csv.toml").write_text(mapping)
    rows = ["shift,minute,position,speed,load,mode,running,throttle,profit,failed,shift_ended"]
    rows += [
        f"{i // 10},{i % 10},{i},{-i},1,{'ab'[i % 2]},yes,{i},{i},no,{int(i % 10 == 9)}"
        for i in range(30)
    ]
    (tmp_path / "logs.csv").write_text("\n".join(rows) + "\n")
    data = icql.load_dataset(tmp_path / "logs.csv")
    assert len(data) == 27
    assert data.info.signals.observation == (
        "position",
        "speed",
        "load",
        "mode=a",
        "mode=b",
        "running",
    )
    assert data.action_dim == 1


MAPPING = (ROOT / "docs" / "mapping.md").read_text()


def test_every_key_of_a_mapping_is_documented_with_an_example(tmp_path):
    """The examples are read as they stand, each below the three keys that are always needed."""
    keys = {field.name for field in dataclasses.fields(Columns)} - {"origin"}
    section = MAPPING.partition("## Every key")[2].partition("###")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(listed) == sorted(keys)
    shown = set()
    for number, example in enumerate(blocks(MAPPING, "toml")):
        given = tomllib.loads(example)
        needed = {"observation": "o", "action": "a", "reward": "r"}
        above = "".join(f'{key} = "{name}"\n' for key, name in needed.items() if key not in given)
        (tmp_path / f"{number}.toml").write_text(above + example)
        read = read_columns(tmp_path / f"{number}.toml")
        assert all(getattr(read, key) for key in given)
        shown |= given.keys()
    assert shown == keys


def test_the_whole_example_of_the_mapping_page_reads_a_log(tmp_path):
    whole = blocks(MAPPING, "toml")[0]
    (tmp_path / "plant.csv.toml").write_text(whole)
    (log,) = blocks(MAPPING, "csv")
    (tmp_path / "plant.csv").write_text(log)
    source = load_steps(tmp_path / "plant.csv")
    assert source.gaps == {"druck": 1}
    assert len(source.transitions()) == 3
    assert validate_dataset(tmp_path / "plant.csv")[0].ok


BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text()


def test_the_commands_of_the_benchmark_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks(BENCHMARKS, "bash") for line in block.splitlines()]
    assert len(lines) >= 5
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0, line
    assert "<svg" in (tmp_path / "bench.html").read_text()


def test_the_long_commands_of_the_benchmark_page_parse():
    lines = re.findall(r"\bicql bench [^&;\n]+", "".join(blocks(BENCHMARKS, "sh")))
    assert len(lines) == 7
    for line in lines:
        with pytest.raises(SystemExit) as exit_:
            main([*shlex.split(line)[1:], "--help"])
        assert exit_.value.code == 0


def test_the_commands_of_the_cluster_page_parse():
    page = (ROOT / "docs" / "cluster.md").read_text()
    lines = re.findall(r"^(?:  entrypoint: )?(icql bench run .*?)(?: &)?$", page, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        with pytest.raises(SystemExit) as exit_:
            main([*shlex.split(line)[1:], "--help"])
        assert exit_.value.code == 0


def test_every_environment_variable_is_in_the_readme():
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    names = set(re.findall(r"\bICQL_[A-Z0-9_]+\b", source))
    assert {"ICQL_CACHE", "ICQL_SUPERVISE"} <= names
    assert names == set(re.findall(r"`(ICQL_[A-Z0-9_]+)", README))


def test_every_suite_is_on_the_benchmark_page():
    table = BENCHMARKS.partition("## Which suite")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w-]+)`", "\n".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert sorted(named) == sorted(suites())


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
