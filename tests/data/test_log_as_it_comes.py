"""A log as it comes: signs, words, times, gaps and files by stated rules; every fault at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from data.plant import LEVELS, MAPPING, plant_rows, write_plant
from icql.data import load_dataset
from icql.data.arrays import Room
from icql.data.datasets import load_steps, make_store, validate_dataset, write_dataset
from icql.data.formats.gaps import fill
from icql.data.formats.mapping import read_columns
from icql.data.formats.npz import write_npz
from icql.data.signals import Signals
from icql.data.validation.columns import BINS, describe, table
from icql.errors import UserError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

Rows = list[dict[str, str]]


def log(folder: Path, rows: Rows, mapping: str = MAPPING, **how: str) -> Path:
    path = write_plant(folder / "log.csv", rows, **how)
    (folder / "log.csv.toml").write_text(mapping, encoding="utf-8")
    return path


def without(key: str, mapping: str = MAPPING) -> str:
    return "".join(
        line for line in mapping.splitlines(keepends=True) if not line.startswith(f"{key} ")
    )


def found(path: Path | str) -> dict[tuple[str, str | None], Any]:
    """Findings by rule and column, severity before the message."""
    findings, _ = validate_dataset(path)
    groups = (("error", findings.errors), ("warning", findings.warnings))
    return {
        (finding.rule, finding.column): (kind, finding.row, finding.message)
        for kind, group in groups
        for finding in group
    }


def small(folder: Path, header: str, lines: list[str], mapping: str = "") -> Path:
    """A log with the columns x, a and r and others."""
    path = folder / "log.csv"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    given = 'observation = ["x"]\naction = ["a"]\nreward = "r"\n'
    (folder / "log.csv.toml").write_text(given + mapping, encoding="utf-8")
    return path


# --- signs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("separator", "decimal"), [(";", ","), (";", "."), (",", "."), ("\t", ","), ("|", ".")]
)
def test_separators_and_decimal_signs_are_found(
    tmp_path: Path, separator: str, decimal: str
) -> None:
    rows = plant_rows(2, 10)
    data = load_dataset(log(tmp_path, rows, separator=separator, decimal=decimal))
    assert_allclose(data.states[0, :4], [float(rows[0][k]) for k in list(rows[0])[2:6]], rtol=1e-6)
    assert len(data) == 2 * 10 - 2  # the last of a cut shift, and the very last row


def test_a_decimal_comma_between_commas_is_quoted(tmp_path: Path) -> None:
    path = small(tmp_path, "x,a,r", ['"0,5",0,1', '"1,5",0,1'])
    assert_array_equal(load_steps(path).steps.observations[:, 0], [0.5, 1.5])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["x;a,b;r", "1;2,5;3", "2;2,5;3"], r'by any of , ;.*separator = ",".*separator = ";"'),
        (["x;a;r", "1,5;0;2.5"], r'such as 2.5 as well as 1,5.*decimal = "," or decimal = "\."'),
        (["x;a;r", "1,234;0;1", "2,345;0;1"], r'such as 1,234: .*decimal = ","'),
        (["x;a;r", "1.234,5;0;1"], "numbers such as 1.234,5 have a sign for thousands"),
    ],
)
def test_a_file_that_can_be_read_in_two_ways_is_refused(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        load_steps(small(tmp_path, lines[0], lines[1:]))


def test_signs_of_the_mapping_decide(tmp_path: Path) -> None:
    path = small(tmp_path, "x;a;r", ["1,234;0;1", "2,345;0;1"], 'decimal = ","\n')
    assert_allclose(load_steps(path).steps.observations[:, 0], [1.234, 2.345])
    path = small(tmp_path, "x;a;r,b", ["1;0;3,4", "2;0;3,4"], 'separator = ";"\n')
    with pytest.raises(UserError, match="no column 'r'"):
        load_steps(path)


# --- words --------------------------------------------------------------------------------------


def test_categories_become_one_number_per_level(tmp_path: Path) -> None:
    rows = plant_rows(2, 10)
    source = load_steps(log(tmp_path, rows))
    names = [f"mode={level}" for level in LEVELS]
    assert list(source.info.signals.observation)[4:7] == names
    hot = source.steps.observations[:, 4:7]
    assert_array_equal(hot.sum(1), 1)
    assert [LEVELS[i] for i in hot.argmax(1)] == [row["mode"] for row in rows]
    # an order of one's own, and a level that this log does not have
    mapping = MAPPING.replace('["mode"]', '{mode = ["off", "auto", "rinse", "manual"]}')
    source = load_steps(log(tmp_path, rows, mapping))
    assert source.info.signals.categories == {"mode": ("off", "auto", "rinse", "manual")}
    hot = source.steps.observations[:, 4:8]
    assert_array_equal(hot[:, 2], 0)
    assert_array_equal(hot[:, 0], [row["mode"] == "off" for row in rows])


def test_levels_that_the_mapping_does_not_list_are_named(tmp_path: Path) -> None:
    rows = plant_rows(2, 10)
    rows[3]["mode"] = rows[7]["mode"] = "wash"
    path = log(tmp_path, rows, MAPPING.replace('["mode"]', '{mode = ["auto", "manual", "off"]}'))
    with pytest.raises(UserError, match=r"'mode' is 'wash' at row 3, .*\(2 such rows\).*: 'wash'"):
        load_steps(path)
    for i, row in enumerate(rows):
        row["mode"] = f"m{i % 80}"
    many = plant_rows(5, 20)
    for i, row in enumerate(many):
        row["mode"] = f"m{i}"
    with pytest.raises(UserError, match="'mode' has more than 64 different values"):
        load_steps(log(tmp_path, many))


def test_numbers_may_be_codes_of_a_category(tmp_path: Path) -> None:
    path = small(tmp_path, "x,a,r", ["10,0,1", "2,0,1", "10,0,1"], 'categories = ["x"]\n')
    assert load_steps(path).info.signals.observation == ("x=2", "x=10")
    table = pa.table({"x": [10, 2, 10], "a": [0.0] * 3, "r": [1.0] * 3})
    pq.write_table(table, tmp_path / "log.parquet")
    (tmp_path / "log.parquet.toml").write_text((tmp_path / "log.csv.toml").read_text())
    assert_array_equal(load_steps(tmp_path / "log.parquet").steps.observations[:, 1], [1, 0, 1])


@pytest.mark.parametrize("yes_no", ["yes no", "Yes NO", "true false", "ja nein", "on off", "1 0"])
def test_yes_and_no_are_read(tmp_path: Path, yes_no: str) -> None:
    yes, no = yes_no.split()
    lines = [f"{no},0.1,1,{no}", f"{yes},0.1,1,{no}", f"{no},0.1,1,{yes}"]
    steps = load_steps(small(tmp_path, "x,a,r,end", lines, 'terminal = "end"\n')).steps
    assert_array_equal(steps.observations[:, 0], [0, 1, 0])
    assert_array_equal(steps.terminals, [False, False, True])


def test_words_of_ones_own_for_yes_and_no(tmp_path: Path) -> None:
    lines = ["auf,0.1,1,OK", "zu,0.1,1,OK", "auf,0.1,1,TRIP"]
    flags = 'terminal = "end"\nflags = {x = ["auf", "zu"], end = ["TRIP", "OK"]}\n'
    steps = load_steps(small(tmp_path, "x,a,r,end", lines, flags)).steps
    assert_array_equal(steps.observations[:, 0], [1, 0, 1])
    assert_array_equal(steps.terminals, [False, False, True])
    lines[1] = "halb,0.1,1,OK"
    with pytest.raises(UserError, match="'x' is 'halb' at row 1, but yes or no is needed"):
        load_steps(small(tmp_path, "x,a,r,end", lines, flags))


def test_text_without_a_meaning_shows_the_line_to_paste(tmp_path: Path) -> None:
    path = log(tmp_path, plant_rows(2, 10), without("categories"))
    error = found(path)["wrong_cells", "mode"]
    assert error[0] == "error"
    assert 'categories = ["mode"]' in error[2]
    table = pa.table({"x": ["a", "b"], "a": [0.0] * 2, "r": [1.0] * 2})
    pq.write_table(table, tmp_path / "log.parquet")
    (tmp_path / "log.parquet.toml").write_text('observation="x"\naction="a"\nreward="r"\n')
    assert 'categories = ["x"]' in found(tmp_path / "log.parquet")["wrong_type", "x"][2]


# --- times --------------------------------------------------------------------------------------


def times(folder: Path, *cells: str, mapping: str = "") -> np.ndarray:
    """The order in which rows with these times come."""
    lines = [f"{i},0.1,1,{cell}" for i, cell in enumerate(cells)]
    path = small(folder, "x,a,r,t", lines, f'time = "t"\n{mapping}')
    return load_steps(path).steps.observations[:, 0]


def test_zones_are_converted(tmp_path: Path) -> None:
    cells = "2024-05-01T12:00:00+02:00", "2024-05-01T09:30:00Z", "2024-05-01T12:15:00+0300"
    assert_array_equal(times(tmp_path, *cells), [2, 1, 0])
    assert_array_equal(times(tmp_path, "2024-05-01 12:00", "2024-05-01 11:59:59"), [1, 0])
    assert_array_equal(times(tmp_path, "2024-05-02", "2024-05-01"), [1, 0])


def test_times_with_and_without_a_zone_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = "2024-05-01T12:00:00Z", "2024-05-01T12:05:00"
    with pytest.raises(UserError, match=r"'t' is '2024-05-01T12:05:00' at row 1.* without a zone"):
        times(tmp_path, *mixed)
    monkeypatch.setattr("icql.data.formats.csv_log.BLOCK_BYTES", 60)  # in another block
    many = [f"2024-05-01T12:{i:02}:00Z" for i in range(20)]
    with pytest.raises(UserError, match=r"at row 20 \(line 22\), without a zone"):
        times(tmp_path, *many, "2024-05-01T13:05:00")


def test_other_formats_are_named_and_read(tmp_path: Path) -> None:
    german = "02.05.2024 12:00:00", "13.04.2024 12:00:00"
    with pytest.raises(UserError, match=r'time_format = "%d.%m.%Y %H:%M:%S"'):
        times(tmp_path, *german)
    stated = 'time_format = "%d.%m.%Y %H:%M:%S"\n'
    assert_array_equal(times(tmp_path, *german, mapping=stated), [1, 0])
    with pytest.raises(UserError, match="'t' is '2024-05-01' at row 1, which is not '%d"):
        times(tmp_path, german[0], "2024-05-01", mapping=stated)


def test_text_times_of_parquet(tmp_path: Path) -> None:
    cells = ["2024-05-01T12:00:00+02:00", "2024-05-01T09:30:00Z"]
    table = pa.table({"x": [0.0, 1.0], "a": [0.0] * 2, "r": [1.0] * 2, "t": cells})
    pq.write_table(table, tmp_path / "log.parquet")
    text = 'observation="x"\naction="a"\nreward="r"\ntime="t"\n'
    (tmp_path / "log.parquet.toml").write_text(text)
    assert_array_equal(load_steps(tmp_path / "log.parquet").steps.observations[:, 0], [1, 0])


def test_swapped_rows_are_sorted_and_counted(tmp_path: Path) -> None:
    rows = plant_rows(3, 10)
    expected = load_dataset(log(tmp_path, rows)).content_hash()
    rows[4], rows[5] = rows[5], rows[4]
    rows[12], rows[13] = rows[13], rows[12]
    path = log(tmp_path, rows)
    assert load_dataset(path).content_hash() == expected
    severity, row, message = found(path)["swapped_rows", "zeit"]
    assert (severity, row) == ("warning", 5)
    assert "2 rows stand after a later one of the same episode (rows 5, 13)" in message
    assert any("2 rows stand" in text for text in load_dataset(path).info.warnings)
    # episodes side by side, each in order, are no fault
    woven = [
        row
        for pair in zip(*(plant_rows(2, 10)[i::10] for i in range(10)), strict=True)
        for row in pair
    ]
    assert ("swapped_rows", "zeit") not in found(log(tmp_path, woven))


def test_without_a_time_the_order_is_unchecked_and_said(tmp_path: Path) -> None:
    rows = plant_rows(3, 10)
    assert ("order_unchecked", None) not in found(log(tmp_path, rows))
    severity, _, message = found(log(tmp_path, rows, without("time")))["order_unchecked", None]
    assert severity == "warning"
    assert "nothing can tell whether that is the order" in message
    assert 'time = "COLUMN"' in message


# --- gaps ---------------------------------------------------------------------------------------


def gappy() -> Rows:
    rows = plant_rows(3, 10)
    for i in (4, 5):
        rows[i]["pressure"] = ""
    rows[10]["t_in"] = ""  # the first of a shift
    rows[19]["t_out"] = ""  # the last of one
    rows[7]["mode"] = "NaN"
    rows[8]["valve"] = ""
    rows[23]["profit"] = ""
    return rows


def test_gaps_are_refused_all_at_once(tmp_path: Path) -> None:
    errors = {
        key: value
        for key, value in found(log(tmp_path, gappy(), without("gaps"))).items()
        if value[0] == "error"
    }
    places = {"pressure": 4, "t_in": 10, "t_out": 19, "mode": 7, "valve": 8, "profit": 23}
    assert {column: row for (_, column), (_, row, _) in errors.items()} == places
    assert {rule for rule, _ in errors} == {"gaps"}
    assert "(2 of 30 rows)" in errors["gaps", "pressure"][2]
    assert 'gaps = "drop" or "hold" or "interpolate"' in errors["gaps", "pressure"][2]
    with pytest.raises(UserError, match="5 more faults: 'icql data validate' lists them all"):
        load_dataset(tmp_path / "log.csv")


def test_gaps_dropped(tmp_path: Path) -> None:
    path = log(tmp_path, gappy(), MAPPING.replace('"hold"', '"drop"'))
    source = load_steps(path)
    assert source.steps.valid is not None
    assert_array_equal(np.flatnonzero(~source.steps.valid), [4, 5, 7, 8, 10, 19, 23])
    assert source.gaps == {"pressure": 2, "t_in": 1, "t_out": 1, "mode": 1, "valve": 1, "profit": 1}
    assert load_dataset(path).info.dropped == 7
    assert "their rows are left out" in found(path)["gaps", "pressure"][2]


def test_gaps_held(tmp_path: Path) -> None:
    source = load_steps(log(tmp_path, gappy()))
    steps = source.steps
    assert_array_equal(steps.observations[3:6, 0], steps.observations[3, 0])
    assert_array_equal(steps.observations[7, 4:7], steps.observations[6, 4:7])
    assert steps.actions[8, 0] == steps.actions[7, 0]
    assert steps.observations[19, 3] == steps.observations[18, 3]
    assert steps.valid is not None  # nothing before it, and a reward that nobody can make up
    assert_array_equal(np.flatnonzero(~steps.valid), [10, 23])
    told = found(tmp_path / "log.csv")
    assert "2 held, at most 2 in a row" in told["gaps", "pressure"][2]
    assert "1 at the beginning of an episode left out" in told["gaps", "t_in"][2]
    assert "2 held" in " ".join(source.info.warnings)


def test_gaps_interpolated_by_time(tmp_path: Path) -> None:
    rows = gappy()
    rows[5]["zeit"] = rows[5]["zeit"].replace(":25:", ":28:")  # of 20, 28 between 15 and 30
    path = log(tmp_path, rows, MAPPING.replace('"hold"', '"interpolate"'))
    steps = load_steps(path).steps
    before, after = steps.observations[[3, 6], 0]
    expected = before + (after - before) * np.array([5, 13]) / 15
    assert_allclose(steps.observations[4:6, 0], expected, rtol=1e-6)
    assert set(np.unique(steps.observations[:, 4:7])) == {0, 1}  # categories are held
    assert steps.observations[19, 3] == steps.observations[18, 3]  # the end is held
    assert steps.actions[8, 0] == pytest.approx(steps.actions[[7, 9], 0].mean(), abs=1e-6)
    assert "2 interpolated" in found(path)["gaps", "pressure"][2]


def test_gaps_by_column(tmp_path: Path) -> None:
    rows = plant_rows(3, 10)
    rows[4]["pressure"] = rows[6]["t_in"] = ""
    mapping = MAPPING.replace('gaps = "hold"', 'gaps = {pressure = "hold"}')
    with pytest.raises(UserError, match="column 't_in' is empty at row 6"):
        load_steps(log(tmp_path, rows, mapping))
    both = mapping.replace('pressure = "hold"', 'pressure = "hold", t_in = "drop"')
    assert load_dataset(log(tmp_path, rows, both)).info.dropped == 1


def test_other_signs_of_a_gap(tmp_path: Path) -> None:
    rows = plant_rows(3, 10)
    rows[4]["pressure"], rows[6]["t_in"] = "Bad", "-9999"
    path = log(tmp_path, rows)
    assert 'missing = ["Bad"]' in found(path)["wrong_cells", "pressure"][2]
    source = load_steps(log(tmp_path, rows, MAPPING + 'missing = ["Bad", "-9999"]\n'))
    assert source.gaps == {"pressure": 1, "t_in": 1}


@pytest.mark.parametrize("cell", [" ", "NAN", "Null"])
def test_gaps_that_are_written_otherwise(tmp_path: Path, cell: str) -> None:
    rows = plant_rows(3, 10)
    rows[4]["pressure"] = cell
    assert load_steps(log(tmp_path, rows)).gaps == {"pressure": 1}
    rows[5]["pressure"] = "high"
    assert {key for key, one in found(log(tmp_path, rows)).items() if one[0] == "error"} == {
        ("wrong_cells", "pressure")
    }


def test_a_stray_decimal_sign_is_a_fault_of_its_cell(tmp_path: Path) -> None:
    rows = plant_rows(3, 10)
    path = log(tmp_path, rows)
    path.write_text(path.read_text().replace(rows[4]["price"].replace(".", ","), rows[4]["price"]))
    _, row, message = found(path)["wrong_cells", "price"]
    assert row == 4
    assert 'decimal = "."' in message


@given(
    cells=st.lists(st.one_of(st.none(), st.integers(-9, 9)), min_size=1, max_size=30),
    cuts=st.sets(st.integers(0, 29)),
    rule=st.sampled_from(["hold", "interpolate"]),
)
def test_filling_equals_a_plain_loop(cells: list[Any], cuts: set[int], rule: str) -> None:
    column = np.array([[np.nan if c is None else c] for c in cells], np.float32)
    ends = np.array([i in cuts or i == len(cells) - 1 for i in range(len(cells))])
    gaps = np.flatnonzero(np.isnan(column[:, 0]))
    expected, first = column[:, 0].astype(float), 0
    for last in np.flatnonzero(ends):
        for i in range(first, last + 1):
            known = [j for j in range(first, last + 1) if cells[j] is not None]
            before = max((j for j in known if j < i), default=None)
            after = min((j for j in known if j > i), default=None)
            if cells[i] is not None or before is None:
                continue
            goal = after if rule == "interpolate" and after is not None else None
            expected[i] = cells[before]
            if goal is not None:
                slope = (cells[goal] - cells[before]) / (goal - before)
                expected[i] += slope * (i - before)
        first = last + 1
    done = fill(column, gaps, ends, rule, lambda rows: rows, steps=False)
    assert_allclose(column[:, 0], expected, rtol=1e-5, atol=1e-6)
    assert_array_equal(done.left_out, np.flatnonzero(np.isnan(expected)))
    assert done.filled + len(done.left_out) == len(gaps)


# --- several files ------------------------------------------------------------------------------


def three_files(folder: Path) -> tuple[Path, str]:
    rows = plant_rows(3, 10)
    whole = load_dataset(log(folder, rows)).content_hash()
    logs = folder / "logs"
    logs.mkdir()
    for number, name in enumerate("cab"):  # not in the order of time
        write_plant(logs / f"{name}.csv", rows[10 * number : 10 * number + 10])
    return logs, whole


def test_several_files_are_one_log(tmp_path: Path) -> None:
    logs, whole = three_files(tmp_path)
    (logs / "columns.toml").write_text(MAPPING)
    assert load_dataset(logs / "*.csv").content_hash() == whole
    (logs / "plant.toml").write_text(MAPPING + 'files = ["a.csv", "[bc].csv"]\n')
    data = load_dataset(logs / "plant.toml")
    assert (data.content_hash(), data.info.name) == (whole, "plant")
    assert load_dataset(logs / "*.csv", columns=logs / "plant.toml").content_hash() == whole
    store = make_store(logs / "plant.toml", tmp_path / "all.icql")
    assert store.content_hash() == whole


def test_several_files_of_parquet(tmp_path: Path) -> None:
    import pyarrow.csv as csv

    logs, whole = three_files(tmp_path)
    for path in logs.glob("*.csv"):
        options = csv.ConvertOptions(decimal_point=",", column_types={"zeit": pa.string()})
        parsed = csv.read_csv(
            path, parse_options=csv.ParseOptions(delimiter=";"), convert_options=options
        )
        pq.write_table(parsed, path.with_suffix(".parquet"))
    (logs / "columns.toml").write_text(MAPPING)
    assert load_dataset(logs / "*.parquet").content_hash() == whole
    assert make_store(logs / "*.parquet", tmp_path / "all.icql").content_hash() == whole


def test_faults_of_several_files_are_named_by_file_and_row(tmp_path: Path) -> None:
    logs, _ = three_files(tmp_path)
    (logs / "columns.toml").write_text(without("gaps"))
    rows = plant_rows(3, 10)
    rows[13]["t_in"] = ""
    write_plant(logs / "a.csv", rows[10:20])
    findings, _ = validate_dataset(logs / "*.csv")
    (error,) = findings.errors
    assert (error.file, error.row, error.column) == (str(logs / "a.csv"), 3, "t_in")
    write_plant(logs / "a.csv", rows[:10])
    with pytest.raises(UserError, match=r"a.csv: row 0 and \S+c.csv, row 0, are the same step"):
        load_dataset(logs / "*.csv")


@pytest.mark.parametrize(
    ("mapping", "name", "message"),
    [
        (MAPPING, "none*.csv", "no file beside it is called 'none*.csv'"),
        (MAPPING, "columns.toml", "it names no `files`"),
        (MAPPING + 'files = ["x.csv"]\n', "columns.toml", "no file beside it is called 'x.csv'"),
        (MAPPING + 'files = ["*"]\n', "columns.toml", "are of several kinds"),
        (MAPPING + "files = 3\n", "columns.toml", "files: must be text, not 3"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, mapping: str, name: str, message: str) -> None:
    logs, _ = three_files(tmp_path)
    (logs / "columns.toml").write_text(mapping)
    with pytest.raises(UserError) as error:
        load_dataset(logs / name)
    assert message in str(error.value)


def test_files_with_other_columns_are_refused(tmp_path: Path) -> None:
    logs, _ = three_files(tmp_path)
    (logs / "columns.toml").write_text(MAPPING)
    text = (logs / "b.csv").read_text()
    (logs / "b.csv").write_text(text.replace("t_in;", "t_inlet;"))
    message = r"b.csv: its columns are not those of \S+a.csv: it lacks 't_in' and has 't_inlet'"
    with pytest.raises(UserError, match=message):
        load_dataset(logs / "*.csv")


def test_without_episode_and_time_a_file_ends_where_it_ends(tmp_path: Path) -> None:
    for name in "ab":
        small(tmp_path, "x,a,r", ["1,0,1", "2,0.1,1"]).rename(tmp_path / f"{name}.csv")
    steps = load_steps(tmp_path / "[ab].csv", columns=tmp_path / "log.csv.toml").steps
    assert_array_equal(steps.timeouts, [False, True, False, True])


# --- every fault at once ------------------------------------------------------------------------


def test_all_faults_of_all_columns_are_reported_at_once(tmp_path: Path) -> None:
    rows = plant_rows(3, 10)
    rows[2]["pressure"] = "high"
    rows[3]["price"] = rows[4]["price"] = "?"
    rows[5]["t_in"] = ""
    rows[6]["mode"] = ""
    rows[7]["valve"] = "140.0"
    rows[8]["heater"] = "-1.0"
    rows[9]["running"] = "vielleicht"
    rows[12]["failed"] = "ja"
    rows[25]["profit"] = "inf"
    errors = {
        key: row
        for key, (kind, row, _) in found(log(tmp_path, rows, without("gaps"))).items()
        if kind == "error"
    }
    assert errors == {
        ("wrong_cells", "pressure"): 2,
        ("wrong_cells", "price"): 3,
        ("gaps", "t_in"): 5,
        ("gaps", "mode"): 6,
        ("outside_bounds", "valve"): 7,
        ("outside_bounds", "heater"): 8,
        ("flags", "running"): 9,
        ("early_end", "failed"): 12,
        ("non_finite", "profit"): 25,
    }


def test_ragged_rows_are_counted_beside_other_faults(tmp_path: Path) -> None:
    path = small(tmp_path, "x,a,r", ["1,0,1", "2,0", "3,0,1,4", "up,0,1", "5,0,1"])
    told = found(path)
    assert told["ragged", None][1] == 1
    assert "(2 rows have another number of cells)" in told["ragged", None][2]
    assert told["wrong_cells", "x"][1] == 3


def test_wide_actions_show_the_line_to_paste(tmp_path: Path) -> None:
    rows = plant_rows(3, 10)
    path = log(tmp_path, rows, without("action_bounds"))
    severity, _, message = found(path)["actions_out_of_bounds", "valve"]
    assert severity == "error"
    line = message.splitlines()[-1]
    seen = [float(row["valve"]) for row in rows]
    assert line.startswith("action_bounds = {")
    (tmp_path / "log.csv.toml").write_text(without("action_bounds") + line + "\n")
    assert read_columns(tmp_path / "log.csv.toml").action_bounds["valve"] == (min(seen), max(seen))
    steps = load_steps(path).steps
    assert (steps.actions.min(), steps.actions.max()) == (-1, 1)
    assert validate_dataset(path)[0].ok


def test_bounds_by_name_leave_the_others_alone(tmp_path: Path) -> None:
    rows = plant_rows(3, 10)
    for row in rows:
        row["heater"] = f"{float(row['heater']) / 5:.3f}"
    mapping = MAPPING.replace(", heater = [0, 5]", "")
    steps = load_steps(log(tmp_path, rows, mapping)).steps
    assert_allclose(steps.actions[:, 1], [float(row["heater"]) for row in rows], atol=1e-6)
    assert_allclose(steps.actions[:, 0], [float(r["valve"]) / 50 - 1 for r in rows], atol=1e-6)


def test_scales_are_found_and_said(tmp_path: Path) -> None:
    path = log(tmp_path, plant_rows(3, 10))
    severity, _, message = found(path)["scales", "pressure"]
    assert severity == "warning"
    assert message.startswith("pressure (spread ")
    assert " Pa) outweighs price (spread 0.0" in message
    alike = MAPPING.replace('"pressure", "price", ', "")
    alike = alike.replace('pressure = "Pa", price = "EUR", ', "")
    assert not [
        rule for rule, _ in found(log(tmp_path, plant_rows(3, 10), alike)) if rule == "scales"
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('["mode"]', '["modus"]', "categories: column 'modus' is in no place .*'mode'"),
        ('["mode"]', '["profit"]', "categories: column 'profit' is in no place"),
        ('["mode"]', '["valve"]', "'valve' is a choice, which goes with no other action"),
        ('["mode"]', "3", "categories: must list columns, or be a table"),
        ('["mode"]', '{mode = ["a", "a"]}', "the levels of 'mode' must be different texts"),
        ('"hold"', '"fill"', "gaps: must be one of 'refuse', 'drop', 'hold', 'interpolate'"),
        ('"hold"', '{valve = "guess"}', "gaps: must be one of .*not 'guess'"),
        ('"hold"', '{profit = "hold"}', "gaps: 'profit' cannot be made up"),
        ('"hold"', '{zeit = "hold"}', "gaps: column 'zeit' is in no place"),
        ("valve = [0, 100]", "valv = [0, 100]", "action_bounds: column 'valv' .*'valve'"),
        ("valve = [0, 100]", "valve = [0]", r"action_bounds: must be \[low, high\]"),
        ("valve = [0, 100]", "valve = [100, 0]", "must be below its high value"),
        ('pressure = "Pa"', "pressure = 3", "units: must be a table"),
        ('pressure = "Pa"', 'druck = "Pa"', "units: column 'druck' is in no place"),
        ('gaps = "hold"', 'flags = {running = ["ja"]}', "flags: must be a table of words"),
        ('gaps = "hold"', 'decimal = ";"', "decimal: must be '.' or ','"),
        ('gaps = "hold"', "missing = [1]", "missing: must list"),
        ('reward = "profit"', 'reward = ""', "reward: is empty"),
    ],
)
def test_faults_of_new_settings_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in MAPPING
    with pytest.raises(UserError, match=message):
        load_dataset(log(tmp_path, plant_rows(2, 10), MAPPING.replace(old, new)))


def test_a_log_without_a_mapping_shows_one_of_its_own_columns(tmp_path: Path) -> None:
    path = log(tmp_path, plant_rows(2, 10))
    (tmp_path / "log.csv.toml").unlink()
    with pytest.raises(UserError) as error:
        load_dataset(path)
    assert '\n  action = ["valve"]\n  reward = "profit"\n' in str(error.value)
    assert f"icql data init {path}" in str(error.value)


# --- a table per column -------------------------------------------------------------------------


def test_the_table_of_columns(tmp_path: Path) -> None:
    rows = gappy()
    facts = {one.name: one for one in describe(load_steps(log(tmp_path, rows)))}
    pressure = facts["pressure"]
    there = [float(row["pressure"]) for row in rows if row["pressure"]]
    assert (pressure.unit, pressure.role, pressure.gaps) == ("Pa", "observation", 2)
    assert (pressure.low, pressure.high) == pytest.approx((min(there), max(there)))
    assert sum(pressure.histogram) == 28  # without the two rows that are left out
    assert len(pressure.bars) == BINS
    assert (facts["valve"].role, facts["valve"].unit) == ("action", "%")
    assert facts["valve"].high == pytest.approx(max(float(r["valve"] or 0) for r in rows), rel=1e-5)
    assert facts["mode=off"].gaps == 1
    assert facts["running"].different == 2
    assert facts["profit"].role == "reward"
    lines = list(table(list(facts.values())))
    assert lines[1].startswith("pressure     Pa")
    json.dumps([one.as_json() for one in facts.values()], allow_nan=False)


def test_the_table_of_odd_columns(tmp_path: Path) -> None:
    """All empty, constant, and what differs by the least there is."""
    lines = ["1,7,0.1,1", "2,7,0.1,1"]
    path = small(tmp_path, "x,c,a,r", lines)
    (tmp_path / "log.csv.toml").write_text('observation=["x","c"]\naction="a"\nreward="r"\n')
    source = load_steps(path)
    steps = source.steps
    broken = steps.observations.copy()
    broken[:, 0] = np.nan
    tiny = np.array([0, 1e-45], np.float32)
    facts = describe(replace(source, steps=replace(steps, observations=broken, rewards=tiny)))
    assert (facts[0].low, facts[0].gaps, facts[0].bars) == (None, 2, "")
    assert facts[1].constant
    assert sum(facts[3].histogram) == 2
    assert "–" in list(table(facts))[1]


def test_blocks_do_not_change_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = load_steps(log(tmp_path, gappy()))
    whole = describe(source)
    monkeypatch.setattr("icql.data.arrays.BLOCK", 20)
    for one, other in zip(whole, describe(source), strict=True):
        assert one.histogram == other.histogram
        assert (one.mean, one.spread) == pytest.approx((other.mean, other.spread))


# --- names travel -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["out.npz", "out.parquet", "out.icql", "out.hdf5"])
def test_names_units_and_bounds_travel(tmp_path: Path, name: str) -> None:
    source = load_steps(log(tmp_path, plant_rows(3, 10)))
    signals = source.info.signals
    assert signals.action == ("valve", "heater")
    assert (signals.action_low, signals.action_high) == ((0, 0), (100, 5))
    assert signals.units["pressure"] == "Pa"
    write_dataset(source, str(tmp_path / name))
    again = load_dataset(tmp_path / name)
    assert again.info.signals == signals
    assert again.content_hash() == source.transitions().content_hash()
    assert source.transitions().info.signals == signals


@pytest.mark.parametrize(
    "content",
    [
        [1],
        "x",
        {"observation": "x"},
        Signals(("a",)).as_json() | {"units": {"a": 1}},
        Signals(("a",)).as_json() | {"action_low": "ab"},
    ],
)
def test_names_that_are_none_are_refused(content: Any) -> None:
    with pytest.raises(UserError, match="`signals` does not hold names"):
        Signals.from_json(content, "store.json")


def test_names_of_other_columns_are_refused(tmp_path: Path) -> None:
    source, other = load_steps(log(tmp_path, plant_rows(3, 10))), Signals(("a", "b")).as_json()
    write_npz(tmp_path / "out.npz", source.steps, {"signals": other})
    write_dataset(source, str(tmp_path / "out.icql"))
    content = json.loads((tmp_path / "out.icql" / "store.json").read_text())
    del content["sha256"], content["seal"]  # as stores were made before
    (tmp_path / "out.icql" / "store.json").write_text(json.dumps(content | {"signals": other}))
    write_dataset(source, str(tmp_path / "out.hdf5"))
    with h5py.File(tmp_path / "out.hdf5", "r+") as file:
        del file["metadata/icql"]
        file["metadata/icql"] = json.dumps({"signals": other})
    for name in ("out.npz", "out.icql", "out.hdf5"):
        with pytest.raises(UserError, match="names other columns"):
            load_dataset(tmp_path / name)


# --- large files --------------------------------------------------------------------------------


def test_blocks_and_memory_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = gappy()
    rows[4], rows[6] = rows[6], rows[4]
    path = log(tmp_path, rows, MAPPING.replace('"hold"', '"interpolate"'))
    whole = load_steps(path)
    monkeypatch.setattr("icql.data.formats.csv_log.BLOCK_BYTES", 300)
    monkeypatch.setattr("icql.data.arrays.BLOCK", 20)
    (tmp_path / "room").mkdir()
    spooled = load_steps(path, Room(tmp_path / "room"))
    for name, array in whole.steps.arrays().items():
        assert_array_equal(array, spooled.steps.arrays()[name])
    assert (whole.faults, whole.gaps) == (spooled.faults, spooled.gaps)


def test_gaps_beyond_the_budget_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icql.data.formats.assemble.PER_GAP", 10**12)
    with pytest.raises(
        UserError, match=r"to fill the 2 gaps of 'pressure' takes .* over the budget"
    ):
        make_store(log(tmp_path, gappy()), tmp_path / "log.icql")
