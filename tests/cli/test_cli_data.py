"""`icql data` as a user calls it: one JSON object on standard output, exit code 2 on mistakes."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import numpy as np
import pytest

from icql.cli.main import main
from icql.data import load_dataset
from icql.data.formats.npz import write_npz
from icql.data.transitions import Steps
from icql.online.protocol import get_recipe
from icql.online.protocol import write_dataset as write_collected

Capture = pytest.CaptureFixture[str]


def ask(capsys: Capture, *argv: str) -> dict[str, Any]:
    """The JSON object that a command that succeeds prints."""
    assert main(["data", *argv, "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    result = json.loads(out)
    assert isinstance(result, dict)
    return result


def fail(capsys: Capture, *argv: str) -> str:
    """The message of a command that must fail."""
    assert main(["data", *argv, "--json"]) == 2
    captured = capsys.readouterr()
    assert set(json.loads(captured.out)) == {"error"}
    return captured.err


@pytest.fixture(autouse=True)
def own_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ICQL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ICQL_D4RL_DIR", raising=False)


def write_csv() -> None:
    pathlib.Path("log.csv").write_text(
        "run,t,x,u,gain,end\n1,0,0.5,0,1,0\n1,1,0.6,1,2,0\n1,2,0.7,0,4,1\n2,0,5,0,1,0\n2,1,6,0,1,0\n"
    )
    pathlib.Path("map.toml").write_text(
        'observation = ["x"]\naction = ["u"]\nreward = "gain"\nepisode = "run"\ntime = "t"\n'
        'terminal = "end"\n'
    )


def test_help_names_every_command(capsys: Capture) -> None:
    assert main(["data", "--help"]) == 0
    out = capsys.readouterr().out
    for command in ("list", "show", "validate", "coverage", "convert", "fetch", "collect"):
        assert f"  {command} " in out
    assert main(["--help"]) == 0
    assert "  data " in capsys.readouterr().out


def test_unknown_commands(capsys: Capture) -> None:
    assert "there is no command 'shwo'. Did you mean 'show'?" in fail(capsys, "shwo")
    assert main(["data"]) == 2
    assert "say which command" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["list", "show", "convert", "fetch", "collect"])
def test_commands_explain_themselves(capsys: Capture, command: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["data", command, "--help"])
    assert stop.value.code == 0
    assert f"icql data {command}" in capsys.readouterr().out


def test_show(capsys: Capture) -> None:
    write_csv()
    facts = ask(capsys, "show", "log.csv", "--columns", "map.toml")
    data = load_dataset("log.csv", columns="map.toml")
    assert facts == {
        "name": "log",
        "source": "log.csv",
        "task": None,
        "transitions": 4,
        "episodes": 2,
        "observation_dim": 1,
        "action_dim": 1,
        "dropped": 0,
        "return_mean": 4.5,
        "return_min": 2.0,
        "return_max": 7.0,
        "length_mean": 2.5,
        "behaviour_score": None,
        "data_hash": data.content_hash(),
        "warnings": [],
    }


def test_show_for_people(capsys: Capture) -> None:
    assert main(["data", "show", "hopper-mini"]) == 0
    out = capsys.readouterr().out
    assert f"transitions      {len(load_dataset('hopper-mini')):,}\n" in out
    assert "behaviour_score  " in out


@pytest.mark.skipif("ICQL_D4RL_DIR" not in os.environ, reason="ICQL_D4RL_DIR is not set")
def test_show_real_data(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, d4rl_dir: pathlib.Path
) -> None:
    monkeypatch.setenv("ICQL_D4RL_DIR", str(d4rl_dir))
    facts = ask(capsys, "show", "kitchen-complete-v0")
    assert (facts["transitions"], facts["episodes"]) == (3679, 19)
    assert facts["behaviour_score"] == 100.0
    facts = ask(capsys, "show", str(d4rl_dir / "kitchen-partial-v0.hdf5"))
    assert (facts["dropped"], len(facts["warnings"])) == (1126, 1)


def test_list(capsys: Capture, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = tmp_path / "cache" / "datasets" / "pen-human-v1.hdf5"
    own = tmp_path / "own" / "hopper-medium-v2.hdf5"
    other = tmp_path / "own" / "mine.parquet"
    for path in (cached, own, other, own.with_suffix(".txt")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setenv("ICQL_D4RL_DIR", str(own.parent))
    listed = ask(capsys, "list")
    tasks = {task["name"]: task for task in listed["tasks"]}
    assert len(tasks) >= 19
    assert tasks["halfcheetah-medium-v2"] == {
        "name": "halfcheetah-medium-v2",
        "environment": "HalfCheetah-v4",
        "domain": "gymnasium",
        "transitions": 999_000,
        "embedded": False,
        "path": None,
        "can_be_fetched": True,
    }
    assert tasks["hopper-mini"]["embedded"]
    assert tasks["pen-human-v1"]["path"] == str(cached)
    assert tasks["hopper-medium-v2"]["path"] == str(own)
    assert listed["files"] == [str(other)]
    assert main(["data", "list"]) == 0
    out = capsys.readouterr().out
    assert "999,000  icql data fetch halfcheetah-medium-v2" in out
    assert str(other) in out


@pytest.mark.parametrize(
    "destination", ["out.npz", "out.hdf5", "out.parquet", "minari:test/out-v0"]
)
def test_convert(capsys: Capture, monkeypatch: pytest.MonkeyPatch, destination: str) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", os.getcwd())
    write_csv()
    arguments = ("convert", "log.csv", destination, "--columns", "map.toml")
    done = ask(capsys, *arguments)
    expected = load_dataset("log.csv", columns="map.toml").content_hash()
    assert (done["identical"], done["data_hash"], done["transitions"]) == (True, expected, 4)
    assert load_dataset(destination).content_hash() == expected
    assert f"{destination}: it exists already. Add --force" in fail(capsys, *arguments)
    assert ask(capsys, *arguments, "--force")["identical"]


def test_convert_says_what_a_format_loses(capsys: Capture) -> None:
    ends = np.array([False, True])
    states = np.ones((2, 1), np.float32)
    steps = Steps(states, states / 2, states[:, 0], ends, ~ends & False, states)
    write_npz("log.npz", steps)
    assert main(["data", "convert", "log.npz", "log.hdf5"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "log.hdf5: 1 transitions\n"
    assert "gives 1 transitions instead of 2" in captured.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["show", "hoper-mini"], "Did you mean 'hopper-mini'?"),
        (["show", "log.csv"], "no column 'observation_*'"),
        (["show", "log.csv", "--columns", "none.toml"], "none.toml: it cannot be read"),
        (["show", "log.csv", "--columns", "map.toml", "--task", "hoper"], "no task 'hoper'"),
        (["show", "hopper-medium-v2"], "icql data fetch hopper-medium-v2"),
        (["convert", "hopper-mini", "out.txt"], "out.txt: data of this kind cannot be written"),
        (["convert", "nothing.npz", "out.npz"], "nothing.npz: there is no such file"),
        (["fetch", "hopper-medum-v2"], "Did you mean 'hopper-medium-v2'?"),
        (["fetch", "hopper-medium-v2", "--sha256", "12"], "must be 64 hexadecimal digits"),
        (["fetch", "minari:a/b-v0", "--sha256", "12"], "no checksum to compare"),
        (["collect", "hoper", "--out", "d"], "no recipe 'hoper'. Did you mean 'hopper'?"),
        (["collect", "hopper", "--out", "d", "--steps", "0"], "--steps: must be at least 1"),
    ],
)
def test_mistakes_are_named_and_write_nothing(
    capsys: Capture, argv: list[str], message: str
) -> None:
    write_csv()
    assert message in fail(capsys, *argv)
    assert {path.name for path in pathlib.Path().iterdir()} <= {"log.csv", "map.toml", "cache"}
    assert not list(pathlib.Path().rglob("*.hdf5*"))


def test_options_that_cannot_be_parsed(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["data", "collect", "hopper", "--out", "d", "--level", "great"])
    assert stop.value.code == 2
    assert capsys.readouterr().out == ""


def test_fetch_through_a_local_copy(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(name: str, *, sha256: str | None, force: bool, progress: Any) -> pathlib.Path:
        assert (name, sha256, force) == ("pen-human-v1", None, True)
        progress(1_000_000, 2_000_000)
        progress(2_000_000, 2_000_000)
        path = pathlib.Path("pen.hdf5")
        path.write_bytes(b"12345")
        return path

    monkeypatch.setattr("icql.cli.data.fetch", fetched)
    done = ask(capsys, "fetch", "pen-human-v1", "--force")
    assert (done["name"], done["path"], done["bytes"]) == ("pen-human-v1", "pen.hdf5", 5)
    assert done["url"].endswith("/hand_dapg_v1/pen-human-v1.hdf5")


def test_fetch_minari(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("icql.cli.data.fetch_minari", asked.append)
    assert ask(capsys, "fetch", "minari:D4RL/door/human-v2")["path"] is None
    assert asked == ["D4RL/door/human-v2"]


def test_collect_random_data(capsys: Capture) -> None:
    arguments = ("collect", "hopper", "--level", "random", "--out", "made")
    done = ask(capsys, *arguments, "--transitions", "400", "--seed", "3")
    data = load_dataset(done["path"])
    assert done["path"] == os.path.join("made", "hopper-random.npz")
    assert (done["level"], done["settings"]["seed"]) == ("random", 3)
    assert 300 < len(data) <= done["steps"] <= 400
    assert (data.observation_dim, data.action_dim) == (11, 3)


def test_collect_shows_each_piece_of_work(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def collected(recipe: str, level: str, out: pathlib.Path, **more: Any) -> pathlib.Path:
        assert (recipe, level, more["steps"]) == ("hopper", "medium", 7)
        more["progress"]("training", 1, 2, "1/s")
        more["progress"]("sampling", 5, 5, "1/s")
        flags = np.array([False, True])
        states = np.ones((2, 11), np.float32)
        steps = Steps(states, states[:, :3], states[:, 0], ~flags & False, flags, states)
        write_collected(out / "x.npz", steps, get_recipe("hopper").task, {"level": level})
        return out / "x.npz"

    monkeypatch.setattr("icql.online.collect", collected)
    arguments = ["data", "collect", "hopper", "--level", "medium", "--out", "o", "--steps", "7"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{os.path.join('o', 'x.npz')}: 2 steps, mean score 0.7\n"
