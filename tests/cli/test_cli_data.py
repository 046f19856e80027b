"""`icql data` as a user calls it: one JSON object on standard output, exit code 2 on mistakes."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import numpy as np
import pytest

from data.plant import MAPPING as PLANT
from data.plant import plant_rows, write_plant
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
    for command in ("list", "show", "init", "validate", "coverage", "convert", "fetch"):
        assert f"  {command} " in out
    assert main(["--help"]) == 0
    assert "  data " in capsys.readouterr().out


def test_unknown_commands(capsys: Capture) -> None:
    assert "there is no command 'shwo'. Did you mean 'show'?" in fail(capsys, "shwo")
    assert main(["data"]) == 2
    assert "say which command" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["list", "show", "init", "validate", "convert", "fetch", "collect"]
)
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
    assert main(["data", "collect", "hopper", "--out", "d", "--level", "great"]) == 2
    said = capsys.readouterr()
    assert "invalid choice 'great' for argument '--level'" in said.err
    assert said.out == ""


def test_fetch_through_a_local_copy(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(
        name: str, *, sha256: str | None, force: bool, progress: Any, tell: Any
    ) -> pathlib.Path:
        assert (name, sha256, force) == ("pen-human-v1", None, True)
        progress(1_000_000, 2_000_000)
        progress(2_000_000, 2_000_000)
        path = pathlib.Path("pen.hdf5")
        path.write_bytes(b"12345")
        return path

    monkeypatch.setattr("icql.cli.obtain.fetch", fetched)
    done = ask(capsys, "fetch", "pen-human-v1", "--force")
    assert (done["name"], done["path"], done["bytes"]) == ("pen-human-v1", "pen.hdf5", 5)
    assert done["url"].endswith("/hand_dapg_v1/pen-human-v1.hdf5")


def test_fetch_minari(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("icql.cli.obtain.fetch_minari", lambda name, _: asked.append(name))
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


# --- a log as it comes --------------------------------------------------------------------------


def test_init_writes_a_mapping_once(capsys: Capture) -> None:
    write_plant(pathlib.Path("plant.csv"), plant_rows(3, 10))
    done = ask(capsys, "init", "plant.csv")
    assert done["mapping"] == "plant.csv.toml"
    assert done["columns"]["action"] == ["valve"]
    assert "plant" in done["why"]["action_bounds"]
    before = pathlib.Path("plant.csv.toml").read_text()
    pathlib.Path("plant.csv.toml").write_text(before + "# mine\n")
    message = fail(capsys, "init", "plant.csv")
    assert "plant.csv.toml: it exists already. Add --force" in message
    assert pathlib.Path("plant.csv.toml").read_text().endswith("# mine\n")
    ask(capsys, "init", "plant.csv", "--force")
    assert pathlib.Path("plant.csv.toml").read_text() == before
    assert ask(capsys, "validate", "plant.csv")["ok"]


def test_init_for_people_and_elsewhere(capsys: Capture) -> None:
    write_plant(pathlib.Path("plant.csv"), plant_rows(3, 10))
    assert main(["data", "init", "plant.csv", "--out", "there/map.toml"]) == 0
    out = capsys.readouterr().out
    assert pathlib.Path("there/map.toml").read_text() in out
    assert "then: icql data validate plant.csv --columns there/map.toml" in out
    assert not pathlib.Path("plant.csv.toml").exists()


def test_init_of_several_files(capsys: Capture) -> None:
    rows = plant_rows(2, 10)
    for i in range(2):
        write_plant(pathlib.Path(f"{i}.csv"), rows[10 * i : 10 * i + 10])
    assert ask(capsys, "init", "*.csv")["mapping"] == "columns.toml"
    assert ask(capsys, "show", "*.csv")["transitions"] == 18
    assert ask(capsys, "show", "columns.toml")["transitions"] == 18
    message = fail(capsys, "show", "columns.toml", "--columns", "columns.toml")
    assert "it is a mapping itself" in message


def test_init_takes_signs_that_cannot_be_found(capsys: Capture) -> None:
    pathlib.Path("log.csv").write_text("x;action;reward\n1,234;0;1\n2,345;0;2\n")
    assert 'decimal = ","' in fail(capsys, "init", "log.csv")
    assert ask(capsys, "init", "log.csv", "--decimal", ",")["columns"]["decimal"] == ","
    assert load_dataset("log.csv").states[0, 0] == pytest.approx(1.234)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["init", "log.npz"], "only logs of columns (.csv, .parquet) have a mapping"),
        (["init", "none.csv"], "none.csv: there is no such file"),
        (["init", "none*.csv"], "no file beside it is called 'none*.csv'"),
        (["init", "log.csv", "--separator", "ab"], "--separator: must be one character"),
        (["init", "log.csv", "--out", "log.csv/map.toml"], "cannot be written"),
    ],
)
def test_init_that_cannot_be(capsys: Capture, argv: list[str], message: str) -> None:
    write_csv()
    assert message in fail(capsys, *argv)


def test_validate_lists_all_faults_below_a_table(capsys: Capture) -> None:
    rows = plant_rows(3, 10)
    rows[2]["pressure"], rows[3]["price"], rows[4]["t_in"] = "high", "", "?"
    write_plant(pathlib.Path("plant.csv"), rows)
    mapping = PLANT.replace('gaps = "hold"\n', "")
    pathlib.Path("plant.csv.toml").write_text(mapping)
    with pytest.raises(SystemExit) as stop:
        main(["data", "validate", "plant.csv"])
    assert stop.value.code == 2
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].split()[:4] == ["column", "unit", "min", "max"]
    assert lines[1].split()[:2] == ["pressure", "Pa"]
    assert "█" in lines[1]
    places = [line for line in lines if line.startswith("error ")]
    assert [line.split(": ")[1] for line in places] == [
        "plant.csv, row 2, pressure",
        "plant.csv, row 4, t_in",
        "plant.csv, row 3, price",
    ]
    assert lines[-1] == "not fit for training: 3 error(s)"


def test_validate_gives_the_table_as_json_and_on_the_page(capsys: Capture) -> None:
    write_plant(pathlib.Path("plant.csv"), plant_rows(3, 10))
    pathlib.Path("plant.csv.toml").write_text(PLANT)
    result = ask(capsys, "validate", "plant.csv", "--report", "page")
    columns = {one["name"]: one for one in result["columns"]}
    assert columns["valve"]["role"] == "action"
    assert columns["valve"]["unit"] == "%"
    assert sum(columns["valve"]["histogram"]) == 30
    page = pathlib.Path(result["report"]).read_text()
    assert "<td>pressure</td><td>observation</td><td>Pa</td>" in page
    assert "Actions that were logged" in page
    ask(capsys, "convert", "plant.csv", "plant.icql")
    stored = {one["name"]: one for one in ask(capsys, "validate", "plant.icql")["columns"]}
    assert stored["valve"]["high"] == pytest.approx(columns["valve"]["high"], abs=1e-2)


def test_train_takes_columns(capsys: Capture) -> None:
    write_plant(pathlib.Path("plant.csv"), plant_rows(4, 20))
    pathlib.Path("map.toml").write_text(PLANT)
    small = ["--algo", "bc", "--policy.hidden", "8", "--batch-size", "8", "--episodes", "0"]
    start = ["train", "--dataset", "plant.csv", "--columns", "map.toml", "--out", "run"]
    assert main([*start, "--steps", "2", *small, "--json"]) == 0
    capsys.readouterr()
    assert json.loads(pathlib.Path("run/run.json").read_text())["columns"] == "map.toml"
    assert main(["train", "--resume", "--out", "run", "--steps", "3", "--json"]) == 0
    capsys.readouterr()
    wide = "".join(line + "\n" for line in PLANT.splitlines() if "bounds" not in line)
    pathlib.Path("map.toml").write_text(wide)
    start[-1] = "other"
    assert main([*start, "--steps", "2", *small]) == 2
    err = capsys.readouterr().err
    assert 'action_bounds = {"valve" = [' in err
    assert not pathlib.Path("other").exists()
