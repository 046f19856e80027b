"""Bounds of actions in files of arrays: asked for, found, kept, and named where they are wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.testing import assert_allclose

from data.log_cases import random_log, write_hdf5
from icql.data import Steps, load_dataset
from icql.data.datasets import convert, make_store, validate_dataset
from icql.data.formats.npz import write_npz
from icql.errors import UserError

LOW, HIGH = np.array([0.0, -5.0]), np.array([100.0, 5.0])


def in_percent() -> Steps:
    """A log whose valve is in percent and whose heater is in ±5."""
    steps = random_log(60)
    unit = np.random.default_rng(0).uniform(-1, 1, (60, 2))
    return replace(steps, actions=(LOW + (unit + 1) / 2 * (HIGH - LOW)).astype(np.float32))


@pytest.fixture(params=["log.npz", "log.hdf5"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    file: Path = tmp_path / request.param
    (write_npz if file.suffix == ".npz" else write_hdf5)(file, in_percent())
    return file


def test_without_bounds_the_lines_to_paste_are_shown(path: Path) -> None:
    (error,) = validate_dataset(path)[0].errors
    assert (error.rule, error.column) == ("actions_out_of_bounds", "actions[0]")
    assert f"Add to {path}.toml" in error.message
    lines = re.findall(r"^action_bounds = .*$", error.message, re.MULTILINE)
    path.with_name(f"{path.name}.toml").write_text(lines[0])
    findings, _ = validate_dataset(path)
    assert findings.ok
    assert findings.transitions is not None
    assert np.abs(findings.transitions.actions).max() <= 1


@pytest.mark.parametrize("beside", [True, False])
def test_bounds_are_found_and_kept(path: Path, tmp_path: Path, beside: bool) -> None:
    file = tmp_path / (f"{path.name}.toml" if beside else "elsewhere.toml")
    file.write_text("action_bounds = [[0, -5], [100, 5]]")
    data = load_dataset(path, columns=None if beside else file)
    logged = in_percent().actions[: len(data)]
    assert (data.info.signals.action_low, data.info.signals.action_high) == ((0, -5), (100, 5))
    expected = 2 * (logged.astype(np.float64) - LOW) / (HIGH - LOW) - 1
    rows = [row for row in range(len(data)) if data.step[row] == row]  # the first episode
    assert_allclose(data.actions[rows], expected[rows], atol=2e-5)  # clipped to 1 - 1e-5
    assert any("mapped linearly to [-1, 1] from 0 … 100" in w for w in data.info.warnings)
    done = convert(path, str(tmp_path / "again.npz"), columns=None if beside else file)
    assert done["identical"]
    assert load_dataset(tmp_path / "again.npz").info.signals == data.info.signals
    store = make_store(path, tmp_path / "log.icql", columns=None if beside else file)
    assert store.content_hash() == data.content_hash()
    assert store.info.signals == data.info.signals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("action_bounds = [0, 50]", r"the action of row \d+ and \d+ others lie outside the bounds"),
        ("action_bounds = [[0], [1, 2, 3]]", "gives 1 low and 3 high values for 2 actions"),
        ('observation = "x"', "`observation` is of CSV and Parquet logs"),
        ('units = {x = "Pa"}', "`units` is of CSV and Parquet logs"),
        ("bounds = 1", "there is no setting 'bounds'"),
    ],
)
def test_wrong_bounds_are_named(path: Path, text: str, message: str) -> None:
    path.with_name(f"{path.name}.toml").write_text(text)
    with pytest.raises(UserError, match=message):
        load_dataset(path)


def test_bounds_are_given_once(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "bounds.toml"
    file.write_text("action_bounds = [[0, -5], [100, 5]]")
    convert(path, str(tmp_path / "again.npz"), columns=file)
    with pytest.raises(UserError, match="has the bounds of its actions already"):
        load_dataset(tmp_path / "again.npz", columns=file)
    make_store(path, tmp_path / "log.icql", columns=file)
    with pytest.raises(UserError, match="a store knows its columns already"):
        load_dataset(tmp_path / "log.icql", columns=file)


def test_rows_that_are_left_out_may_lie_anywhere(tmp_path: Path) -> None:
    steps = in_percent()
    valid = np.ones(60, bool)
    valid[7] = False
    steps.actions[7] = 1e6
    write_npz(tmp_path / "log.npz", replace(steps, valid=valid))
    (tmp_path / "log.npz.toml").write_text("action_bounds = [[0, -5], [100, 5]]")
    assert np.abs(load_dataset(tmp_path / "log.npz").actions).max() <= 1


def test_a_file_of_d4rls_is_still_clipped(tmp_path: Path) -> None:
    write_hdf5(
        tmp_path / "hopper_medium-v2.hdf5", replace(in_percent(), actions=in_percent().actions / 90)
    )
    with h5py.File(tmp_path / "hopper_medium-v2.hdf5") as file:
        assert np.abs(file["actions"][:]).max() > 1
    findings, _ = validate_dataset(tmp_path / "hopper_medium-v2.hdf5")
    assert findings.ok
    assert "They are clipped" in " ".join(w.message for w in findings.warnings)
