"""Logs as tables: rows in any order, columns of any name, every fault named."""

from __future__ import annotations

import contextlib
import pathlib
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from data.log_cases import random_log, source
from icql.data import load_dataset
from icql.data.datasets import load_steps
from icql.data.formats.mapping import Columns, choose, read_columns
from icql.data.formats.parquet_log import write_parquet
from icql.errors import UserError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

MAPPING = """\
observation = ["x", "y"]
action = "a"
reward = "r"
episode = "run"
time = "t"
terminal = "done"
truncated = "cut"
"""
# Run 1: three steps, cut without a mark. Run 2: two steps, done. Run 3: two steps, cut.
HEAD = "run,t,x,y,a,r,done,cut,note"
ROWS = [
    "1,0,0.5,-1,0.1,1,0,0,start",
    "1,1,1.5,-2,0.2,2,0,0,",
    "1,5,2.5,-3,0.3,3,0,0,",
    "2,0,10,0,-0.1,4,0,0,",
    "2,1,11,0,-0.2,5,1,0,",
    '3,0,20,0,0.9,6,0,0,"a, b"',
    "3,1,21,0,0.8,7,0,1,",
]


def write_log(folder: pathlib.Path, rows: list[str] = ROWS, mapping: str = MAPPING) -> pathlib.Path:
    path = folder / "log.csv"
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    (folder / "log.csv.toml").write_text(mapping)
    return path


def test_csv_log_by_hand(tmp_path: pathlib.Path) -> None:
    data = load_dataset(write_log(tmp_path))
    assert_array_equal(data.states, [[0.5, -1], [1.5, -2], [10, 0], [11, 0], [20, 0]])
    assert_array_equal(data.next_states, [[1.5, -2], [2.5, -3], [11, 0], [11, 0], [21, 0]])
    assert_array_equal(data.actions[:, 0], np.float32([0.1, 0.2, -0.1, -0.2, 0.9]))
    assert_array_equal(data.next_actions[:, 0], np.float32([0.2, 0.3, -0.2, 0, 0.8]))
    assert_array_equal(data.rewards, [1, 2, 4, 5, 6])
    assert_array_equal(data.mask, [1, 1, 1, 0, 1])
    assert_array_equal(data.episode, [0, 0, 1, 1, 2])
    assert data.info.episode_returns == (6.0, 9.0, 13.0)
    assert data.info.warnings == ()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """CSV is parsed in blocks of a few rows, so that rows of one file fall into several."""
    monkeypatch.setattr("icql.data.formats.csv_log.BLOCK_BYTES", 120)


@pytest.mark.usefixtures("small_blocks")
def test_new_lines_in_quoted_cells(tmp_path: pathlib.Path) -> None:
    expected = load_dataset(write_log(tmp_path)).content_hash()
    rows = [row + '"one\ntwo\nthree"' if row.endswith(",") else row for row in ROWS]
    assert load_dataset(write_log(tmp_path, rows)).content_hash() == expected


@pytest.mark.usefixtures("small_blocks")
def test_times_and_names_as_text(tmp_path: pathlib.Path) -> None:
    expected = load_dataset(write_log(tmp_path)).content_hash()
    rows = [f"run {row[0]},2024-05-01 12:00:0{row[2:]}" for row in reversed(ROWS)]
    rows[5] = rows[5].replace(":01", ":01.5")
    assert load_dataset(write_log(tmp_path, rows)).content_hash() == expected


@pytest.mark.parametrize("seed", range(3))
def test_rows_may_come_in_any_order(tmp_path: pathlib.Path, seed: int) -> None:
    expected = load_dataset(write_log(tmp_path)).content_hash()
    shuffled = [ROWS[i] for i in np.random.default_rng(seed).permutation(len(ROWS))]
    assert shuffled != ROWS
    assert load_dataset(write_log(tmp_path, shuffled)).content_hash() == expected


def test_parquet_and_csv_give_the_same(tmp_path: pathlib.Path) -> None:
    import pyarrow.csv

    path = write_log(tmp_path)
    pq.write_table(pyarrow.csv.read_csv(path), tmp_path / "log.parquet")
    (tmp_path / "log.toml").write_text(MAPPING)  # without the suffix of the log
    data = load_dataset(tmp_path / "log.parquet")
    assert data.content_hash() == load_dataset(path).content_hash()


@pytest.mark.parametrize(
    ("episodes", "times"),
    [
        (["a", "b", "b", "a"], [1, 0, 1, 0]),
        (["2", "10", "10", "2"], np.array([5, 0, 3, 1], "datetime64[us]")),
        ([0.5, 1.5, 1.5, 0.5], [0.2, 0.1, 0.3, 0.1]),
        (pa.array(["a", "b", "b", "a"]).dictionary_encode(), pa.array([1, 0, 1, 0], pa.date32())),
        (pa.array([1, 7, 7, 1], pa.uint64()), pa.array([1, 0, 1, 0], pa.time32("s"))),
    ],
)
def test_kinds_of_episodes_and_times(tmp_path: pathlib.Path, episodes: Any, times: Any) -> None:
    table = {
        "observation_0": [3, 1, 2, 0],
        "action_0": [0.0] * 4,
        "reward": [1, 2, 3, 4],
        "episode": episodes,
        "step": times,
    }
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    steps = load_steps(tmp_path / "log.parquet").steps
    text_order = isinstance(episodes, list) and episodes[0] == "2"  # "10" comes before "2"
    expected = [1, 2, 0, 3] if text_order else [0, 3, 1, 2]
    assert_array_equal(steps.observations[:, 0], expected)
    assert_array_equal(steps.timeouts, [False, True, False, True])


def test_without_episodes_marks_cut_the_log(tmp_path: pathlib.Path) -> None:
    mapping = MAPPING.replace('episode = "run"\n', "").replace('time = "t"\n', "")
    steps = load_steps(write_log(tmp_path, mapping=mapping)).steps
    assert_array_equal(np.flatnonzero(steps.terminals), [4])
    assert_array_equal(np.flatnonzero(steps.timeouts), [6])


def test_patterns_follow_the_numbers() -> None:
    header = ["s_10", "s_2", "s_1", "u", "gain"]
    chosen = choose(Columns("s_*", ("u",), "gain", origin="m.toml", **NONE), header, "log")
    assert chosen.observation == ("s_1", "s_2", "s_10")
    assert (chosen.action, chosen.reward, chosen.episode) == (("u",), "gain", None)


NONE: dict[str, Any] = dict.fromkeys(
    ("next_observation", "episode", "time", "terminal", "truncated", "valid")
)


def test_action_bounds_map_to_unit_actions(tmp_path: pathlib.Path) -> None:
    wide = [row.replace("0.9,6", "4,6").replace("0.8,7", "2,7") for row in ROWS]
    path = write_log(tmp_path, wide, MAPPING + "action_bounds = [-4, 4]\n")
    log = load_steps(path)
    assert_allclose(log.steps.actions[:, 0], np.float32([0.1, 0.2, 0.3, -0.1, -0.2, 4, 2]) / 4)
    assert "mapped linearly to [-1, 1]: 'a' from -4 … 4" in log.info.warnings[0]
    assert load_dataset(path).info.warnings == log.info.warnings
    write_log(tmp_path, wide, MAPPING + "action_bounds = [[-2.0], [6.0]]\n")
    assert_allclose(load_steps(path).steps.actions[5:, 0], [0.5, 0.0])
    write_log(tmp_path, wide, MAPPING + "action_bounds = [-1, 1]\n")
    with pytest.raises(UserError, match=r"log.csv: column 'a' is 4 at row 5, outside its bounds"):
        load_steps(path)
    write_log(tmp_path, wide, MAPPING)  # without bounds, actions keep their units
    assert load_dataset(path).actions.max() == 4


def test_mapping_given_by_hand(tmp_path: pathlib.Path) -> None:
    path = write_log(tmp_path)
    expected = load_dataset(path)
    mapping = (tmp_path / "log.csv.toml").rename(tmp_path / "elsewhere.toml")
    with pytest.raises(UserError, match=r"no column 'observation_\*'.*log.csv.toml or with --col"):
        load_dataset(path)
    assert load_dataset(path, columns=mapping).content_hash() == expected.content_hash()
    by_hand = load_dataset(path, columns=read_columns(mapping), task="hopper-mini")
    assert by_hand.info.task == "hopper-mini"
    with pytest.raises(UserError, match="`observation` is of CSV and Parquet logs"):
        load_dataset("hopper-mini", columns=mapping)


def test_mapping_names_the_task_and_the_separator(tmp_path: pathlib.Path) -> None:
    path = write_log(tmp_path, mapping=MAPPING + 'task = "hopper-mini"\nseparator = ";"\n')
    path.write_text(path.read_text().replace('"a, b"', "").replace(",", ";"))
    data = load_dataset(path)
    assert (data.info.task, len(data)) == ("hopper-mini", 5)


def test_invalid_rows_may_hold_anything(tmp_path: pathlib.Path) -> None:
    rows = [f"{row},1" for row in ROWS]
    rows[1] = "1,1,nan,,inf,2,0,0,,0"
    path = write_log(tmp_path, mapping=MAPPING + 'valid = "ok"\naction_bounds = [-1, 1]\n')
    path.write_text("\n".join([f"{HEAD},ok", *rows]))
    data = load_dataset(path)
    assert data.info.dropped == 1
    assert_array_equal(data.states[:, 0], [10, 11, 20])


@pytest.mark.parametrize(
    ("row", "text", "message"),
    [
        (2, "1,2,2.5,-3,0.3,3,0,0", r"row 2 \(line 4\) has 8 cells, but there are 9 columns"),
        (2, "1,2,2.5,-3,0.3,3,0,0,,,", r"row 2 \(line 4\) has 11 cells"),
        (1, "1,1,high,-2,0.2,2,0,0,", r"column 'x' is 'high' at row 1 \(line 3\), but a number"),
        (1, "1,1,,-2,0.2,2,0,0,", r"column 'x' is empty at row 1 \(1 of 7 rows\).*gaps = "),
        (1, "1,1,1,-2,inf,2,0,0,", "column 'a' is not a finite number at row 1"),
        (1, "1,1,1,1e39,0,2,0,0,", "column 'y' is not a finite number at row 1"),
        (1, "1,1,1,-2,0,2,0.5,0,", "`done` is 0.5 at row 1, but only 0 and 1"),
        (1, "1,1,1,-2,0,2,maybe,0,", r"'done' is 'maybe' at row 1 \(line 3\), but a number"),
        (1, ",1,1,-2,0,2,0,0,", "column 'run' is empty at row 1"),
        (1, "1,,1,-2,0,2,0,0,", "column 't' is empty at row 1"),
        (1, "1,soon,1,-2,0,2,0,0,", "column 't' holds values of type string"),
        (6, "1,1,1,-2,0,2,0,0,", "rows 1 and 6 are the same step: they agree in 't' and 'run'"),
        (1, "1,1,1,-2,0,2,1,0,", "column 'done' ends the episode at row 1, but"),
        (1, "1,1,1,-2,0,2,0,1,", "column 'cut' ends the episode at row 1, but"),
        (1, '1,1,1,-2,0,2,0,0,"open', "cannot be read as CSV|row 1"),
    ],
)
def test_faults_of_rows_are_named(
    tmp_path: pathlib.Path, row: int, text: str, message: str
) -> None:
    rows = [*ROWS]
    rows[row] = text
    with pytest.raises(UserError, match=f"log.csv: .*({message})"):
        load_dataset(write_log(tmp_path, rows))


def test_a_late_row_of_another_type_is_named(tmp_path: pathlib.Path) -> None:
    lines = [f"1,{i},0.123456,0.123456,0.1,1,0,0," for i in range(40_000)]
    lines[30_000] = "1,30000,0,0,0.1,1,0,0,".replace("1,", "one,", 1)
    with pytest.raises(UserError, match=r"column 'run' is 'one' at row 30000 \(line 30002\)"):
        load_dataset(write_log(tmp_path, lines))
    lines[30_000] = "1,29999.5,0,0,0.1,1,0.0,0,"  # whole numbers before, but this is fine
    assert len(load_dataset(write_log(tmp_path, lines))) == 39_999


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"\n\n", "it is empty"),
        (HEAD.encode(), "zero rows"),
        (("\n".join([HEAD, *ROWS])).encode("utf-16"), "not text in UTF-8"),
        (("\n".join([HEAD, *ROWS])).replace("note", "größe").encode("latin-1"), "not text in UTF"),
        (HEAD.replace("y,", "x,").encode() + b"\n1,2", "two columns are called 'x'"),
        (HEAD.replace("y,", "why,").encode(), "no column 'y', which .*log.csv.toml names"),
    ],
)
def test_faults_of_files_are_named(tmp_path: pathlib.Path, content: bytes, message: str) -> None:
    path = write_log(tmp_path)
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"log.csv: .*{message}"):
        load_dataset(path)


def test_utf8_with_a_mark_and_windows_lines(tmp_path: pathlib.Path) -> None:
    path = write_log(tmp_path)
    expected = load_dataset(path).content_hash()
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert load_dataset(path).content_hash() == expected


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"x", "y"', '"x", "yy"', "no column 'yy', which .* names as `observation`. Did you mean"),
        ('reward = "r"', 'reward = "rr"', "no column 'rr', which .* names as `reward`"),
        ('reward = "r"\n', "", "toml: `reward` is missing"),
        ('reward = "r"', 'rewards = "r"', "no setting 'rewards'. Did you mean 'reward'"),
        ('reward = "r"', 'reward = "x"', "column 'x' is given two meanings"),
        ('reward = "r"', "reward = 3", "reward: must be text, not 3"),
        ('reward = "r"', 'reward = "', "toml: it is not TOML"),
        ('["x", "y"]', "[1, 2]", "observation: must list names of columns"),
        ('["x", "y"]', "[]", "observation: must list names of columns"),
        ('["x", "y"]', '"z*"', r"no column 'z\*'"),
        ('truncated = "cut"', 'separator = ";;"', "separator: must be one character"),
        ('truncated = "cut"', 'next_observation = "note"', "2 columns of the observation but 1 of"),
        ('truncated = "cut"', "action_bounds = [1]", r"action_bounds: must be \[low, high\]"),
        ('truncated = "cut"', "action_bounds = [1, 1]", "must be below its high value"),
        ('truncated = "cut"', "action_bounds = [0, nan]", "must be below its high value"),
        ('truncated = "cut"', "action_bounds = [[0, 0], [1, 1]]", "2 low and 2 high values for 1"),
        ('truncated = "cut"', 'task = "hoper"', "no task 'hoper'"),
    ],
)
def test_faults_of_mappings_are_named(
    tmp_path: pathlib.Path, old: str, new: str, message: str
) -> None:
    assert old in MAPPING
    with pytest.raises(UserError, match=message):
        load_dataset(write_log(tmp_path, mapping=MAPPING.replace(old, new)))


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("reward", ["a", "b"], "column 'reward' holds values of type (large_)?string, not numbers"),
        (
            "action_0",
            [[1.0], [2.0]],
            "column 'action_0' holds values of type list<.*>, not numbers",
        ),
        ("reward", [1.0, None], "column 'reward' is empty at row 1"),
        ("terminal", [0, None], "`terminal` is nan at row 1"),
        ("episode", [[1], [2]], "column 'episode' holds values of type list"),
        ("episode", [1, None], "column 'episode' is empty at row 1"),
        ("step", ["a", "b"], "column 'step' holds values of type"),
    ],
)
def test_faults_of_parquet_are_named(
    tmp_path: pathlib.Path, column: str, values: Any, message: str
) -> None:
    table: dict[str, Any] = {"observation_0": [1.0, 2.0], "action_0": [0, 1], "reward": [0, 1]}
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table(table | {column: values}), path)
    with pytest.raises(UserError, match=f"log.parquet: {message}"):
        load_dataset(path)


def test_large_tables_are_refused_before_they_are_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "log.parquet", source(random_log(2000)))
    monkeypatch.setattr("icql.data.arrays.memory_limit", lambda: 10_000)
    for path in (tmp_path / "log.parquet", write_log(tmp_path, ROWS * 100)):
        with pytest.raises(UserError, match=r"its arrays need .* over the limit"):
            load_dataset(path)


def test_missing_pyarrow_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_log(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.csv", None)
    with pytest.raises(UserError, match=r"log.csv: .*not installed. pip install 'icql\[logs\]'"):
        load_dataset(path)


@given(text=st.text(max_size=300))
def test_any_text_as_csv_gives_data_or_a_message(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_text(f"observation_0,action_0,reward,episode,step\n{text}", encoding="utf-8")
    with contextlib.suppress(UserError):
        load_dataset(path)


@given(text=st.text(max_size=100))
def test_any_text_as_mapping_gives_columns_or_a_message(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(MAPPING + text, encoding="utf-8")
    with contextlib.suppress(UserError):
        read_columns(path)


def test_a_flipped_bit_of_a_parquet_file_of_ours_is_found(tmp_path: pathlib.Path) -> None:
    """Of every page that holds numbers: without checksums most of them would be believed."""
    path = tmp_path / "log.parquet"
    write_parquet(path, source(random_log(50)))
    whole, facts = path.read_bytes(), pq.ParquetFile(path).metadata
    columns = [facts.row_group(0).column(i) for i in range(facts.num_columns)]
    for column in columns:
        start = column.dictionary_page_offset or column.data_page_offset
        last = start + column.total_compressed_size - 1
        content = bytearray(whole)
        content[last] ^= 1
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"log\.parquet"):
            load_dataset(path)
