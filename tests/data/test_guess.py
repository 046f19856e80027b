"""A first mapping for a log: what is guessed, why, and that it reads the log it came from."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.plant import plant_rows, write_plant
from icql.data import load_dataset
from icql.data.datasets import validate_dataset
from icql.data.formats.guess import by_name, guess_mapping, toml
from icql.data.formats.mapping import read_columns
from icql.errors import UserError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def test_the_guess_reads_the_log(tmp_path: Path) -> None:
    rows = plant_rows(4, 20)
    path = write_plant(tmp_path / "log.csv", rows)
    guess = guess_mapping(path)
    valves = [float(row["valve"]) for row in rows]
    assert guess.values == {
        "observation": ["pressure", "price", "t_in", "t_out", "mode", "running", "heater"],
        "action": ["valve"],
        "reward": "profit",
        "episode": "schicht",
        "time": "zeit",
        "terminal": "failed",
        "categories": {"mode": ["auto", "manual", "off"]},
        "action_bounds": {"valve": [pytest.approx(min(valves)), pytest.approx(max(valves))]},
    }
    assert guess.why.keys() == guess.values.keys()  # each says why
    (tmp_path / "log.csv.toml").write_text(guess.text("log"), encoding="utf-8")
    assert tomllib.loads((tmp_path / "log.csv.toml").read_text()).keys() == guess.values.keys()
    assert validate_dataset(path)[0].ok
    assert load_dataset(path).observation_dim == 9
    assert "gaps" not in guess.text("log")


def test_gaps_are_counted_and_nothing_is_made_up(tmp_path: Path) -> None:
    rows = plant_rows(4, 20)
    rows[3]["price"] = rows[5]["price"] = rows[6]["mode"] = ""
    guess = guess_mapping(write_plant(tmp_path / "log.csv", rows))
    assert guess.gaps == {"price": 2, "mode": 1}
    assert "# gaps: 2 in price, 1 in mode." in guess.text("log")
    assert "gaps" not in tomllib.loads(guess.text("log"))


def test_columns_that_say_nothing_are_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    head = "Unnamed,id,constant,empty,note,time,action,reward,level (m),pressure_Pa,recipe,again"
    lines = [
        f"{i},{i},7,,note {i},{i},{i % 3 / 2 - 0.5},1,{i / 9},{i * i},{i % 4},2024-05-0{i % 9 + 1}"
        for i in range(40)
    ]
    path.write_text("\n".join([head, *lines]) + "\n")
    guess = guess_mapping(path)
    assert guess.left_out.keys() == {"Unnamed", "id", "constant", "empty", "note", "again"}
    assert guess.values["time"] == "time"
    assert guess.values["observation"] == ["level (m)", "pressure_Pa", "recipe"]
    assert guess.values["units"] == {"level (m)": "m", "pressure_Pa": "Pa"}
    assert guess.values["categories"] == {"recipe": ["0", "1", "2", "3"]}
    assert "action_bounds" not in guess.values
    assert "#   constant: it never changes" in guess.text("log")


def test_what_cannot_be_guessed_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("pressure,flow\n1,2\n2,3\n3,5\n")
    text = guess_mapping(path).text("log")
    assert 'reward = ""' in text
    assert "name the column that says how good a step was" in text
    (tmp_path / "log.csv.toml").write_text(text)
    with pytest.raises(UserError, match=r"action: must list names|reward: is empty"):
        read_columns(tmp_path / "log.csv.toml")


def test_german_times(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    lines = [f"{i + 1:02}.05.2024 12:00;{i},5;0,{i:02};1,5" for i in range(20)]
    path.write_text("\n".join(["Zeit;druck;Ventil;Gewinn", *lines]) + "\n")
    guess = guess_mapping(path)
    assert (guess.values["time"], guess.values["time_format"]) == ("Zeit", "%d.%m.%Y %H:%M")
    assert (guess.values["action"], guess.values["reward"]) == (["Ventil"], "Gewinn")
    (tmp_path / "log.csv.toml").write_text(guess.text("log"))
    assert len(load_dataset(path)) == 19


def test_parquet_and_several_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        table = {
            "run": [name] * 6,
            "t": np.arange(6),
            "x": np.arange(6) / 3,
            "u": np.linspace(-2, 2, 6),
            "gain": np.ones(6),
            "done": [False] * 5 + [True],
        }
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    guess = guess_mapping(tmp_path / "*.parquet")
    assert guess.values == {
        "observation": ["x"],
        "action": ["u"],
        "reward": "gain",
        "episode": "run",
        "time": "t",
        "terminal": "done",
        "files": ["*.parquet"],
        "action_bounds": {"u": [-2, 2]},
    }
    (tmp_path / "plant.toml").write_text(guess.text("plant"))
    assert len(load_dataset(tmp_path / "plant.toml")) == 11  # the very last row has no successor


def test_what_is_broken_is_said(tmp_path: Path) -> None:
    rows = plant_rows(4, 20)
    rows[70]["price"] = "dear"
    guess = guess_mapping(write_plant(tmp_path / "log.csv", rows))
    assert guess.left_out == {"price": "text with too many different values for a category"}
    rows[70]["price"], rows[70]["zeit"] = "0.2", rows[69]["zeit"]
    text = guess_mapping(write_plant(tmp_path / "log.csv", rows)).text("log")
    assert "(to repair) zeit: rows 69 and 70 are the same step" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "it is empty"),
        ("x;a,b;r\n1;2,5;3\n2;2,5;3\n", "separator = "),
        ("x;action;reward\n1,5;0;2.5\n", "--decimal, or .*decimal = "),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        guess_mapping(path)
    with pytest.raises(UserError, match=r"none.csv: there is no such file"):
        guess_mapping(tmp_path / "none.csv")
    with pytest.raises(UserError, match=r"none.parquet: there is no such file"):
        guess_mapping(tmp_path / "none.parquet")


def test_names_alone() -> None:
    lines = by_name(["speed", "torque", "reward", "episode", "t", "done", "next_speed"])
    assert tomllib.loads(lines) == {
        "observation": ["speed"],
        "action": ["torque"],
        "reward": "reward",
        "episode": "episode",
        "time": "t",
        "terminal": "done",
        "next_observation": ["next_speed"],
    }


@given(
    names=st.lists(st.text(max_size=12), min_size=1, max_size=5),
    value=st.floats(allow_nan=False, allow_infinity=False),
)
def test_any_names_give_toml(names: list[str], value: float) -> None:
    text = f"a = {toml(names)}\nb = {toml({name: [value, 3] for name in names})}\n"
    assert tomllib.loads(text) == {"a": names, "b": {name: [value, 3] for name in names}}


def test_a_letter_speaks_for_itself_alone() -> None:
    guess = tomllib.loads(by_name(["t_in", "u_1", "r", "a2", "speed_t"]))
    assert guess == {"observation": ["t_in", "speed_t"], "action": ["u_1", "a2"], "reward": "r"}


@given(text=st.text(max_size=200))
def test_any_text_gives_a_mapping_or_a_message(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_text(f"x,action,reward,run,t\n{text}", encoding="utf-8")
    try:
        guess = guess_mapping(path)
    except UserError:
        return
    assert tomllib.loads(guess.text(text)) == guess.values
