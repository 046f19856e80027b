"""What `icql data validate` says and writes: places of findings, a page that needs nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from data.log_cases import CLEAN, PLAIN, source
from icql.cli.data import Validate
from icql.data import get_task
from icql.data.datasets import validate_dataset
from icql.data.formats.npz import write_npz
from icql.data.pictures import return_to_go, state_map
from icql.data.transitions import DataInfo, Source
from icql.data.validation.findings import Finding
from icql.data.validation.page import write_report
from icql.data.validation.rules import validate
from icql.errors import UserError


def broken_file(folder: Path) -> Path:
    path = folder / "log.npz"
    write_npz(path, PLAIN)
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    arrays["observations"][[3, 9], 1] = np.nan
    np.savez(path, **arrays)
    return path


def test_errors_leave_with_code_2_and_name_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = broken_file(tmp_path)
    with pytest.raises(SystemExit) as stop:
        Validate.parse("validate", [str(path), "--json"]).execute()
    assert stop.value.code == 2
    result = json.loads(capsys.readouterr().out)
    assert not result["ok"]
    assert result["transitions"] is None
    (error,) = result["errors"]
    assert error.keys() == {"rule", "file", "row", "column", "message"}
    assert (error["rule"], error["file"], error["row"], error["column"]) == (
        "non_finite",
        str(path),
        3,
        "observations[1]",
    )
    with pytest.raises(SystemExit):
        Validate.parse("validate", [str(path)]).execute()
    assert f"error non_finite: {path}, row 3, observations[1]: " in capsys.readouterr().out


def test_unreadable_data_is_an_error_of_the_same_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.hdf5"
    cut.write_bytes(b"\x89HDF\r\n\x1a\n")
    ragged = tmp_path / "flags.npz"
    write_npz(ragged, PLAIN)
    with np.load(ragged, allow_pickle=False) as file:
        arrays = {**file, "terminals": np.arange(len(PLAIN)) % 3}
    np.savez(ragged, **arrays)
    for path, row, column in ((cut, None, None), (ragged, 2, "terminals"), ("hoper", None, None)):
        with pytest.raises(SystemExit) as stop:
            Validate.parse(
                "validate", [str(path), "--json", "--report", str(tmp_path / "page")]
            ).execute()
        assert stop.value.code == 2
        (error,) = json.loads(capsys.readouterr().out)["errors"]
        assert (error["rule"], error["row"], error["column"]) == ("unreadable", row, column)
        assert "Not fit for training" in (tmp_path / "page" / "report.html").read_text()


def test_a_gap_in_a_csv_log_is_named_by_its_column(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = "".join(f"0,{t},{t % 3},{'nan' if t == 5 else t},0.5,1\n" for t in range(9))
    path.write_text("run,t,angle,speed,push,gain\n" + rows)
    path.with_suffix(".csv.toml").write_text(
        'observation = ["angle", "speed"]\naction = ["push"]\nreward = "gain"\n'
        'episode = "run"\ntime = "t"\n'
    )
    findings, source = validate_dataset(path)
    (error,) = findings.errors
    assert (error.rule, error.file, error.row, error.column) == (
        "gaps",
        str(path),
        5,
        "speed",
    )
    assert source is not None
    with pytest.raises(UserError, match="column 'speed' is empty at row 5"):
        source.transitions()


def test_command_on_good_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.npz"
    write_npz(path, CLEAN)
    result = Validate.parse(
        "validate", [str(path), "--json", "--report", str(tmp_path / "page")]
    ).execute()
    assert capsys.readouterr().out == ""
    assert (result["ok"], result["errors"], result["warnings"]) == (True, [], [])
    page = Path(result["report"]).read_text()
    assert page.count('src="data:image/png;base64,') == 5
    assert len(list((tmp_path / "page").iterdir())) == 1  # one file, nothing half-written
    assert Validate.parse("validate", [str(path)]).execute()["ok"]
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["column", "unit", "min", "max", "mean", "spread", "gaps", "values"]
    assert out[-1].startswith("ok: ")


def test_page_needs_nothing_from_outside_and_escapes_names(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>'
    finding = Finding(evil, evil, 3, evil, evil)
    evil_log = Source(CLEAN, DataInfo(evil, source=evil), get_task("hopper-mini"))
    findings = replace(validate(source(CLEAN)), warnings=(finding,))
    page = write_report(tmp_path, evil, findings, evil_log).read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"(https?:)?//\w", re.sub(r"base64,[^\"]*", "", page))
    assert 'name="viewport"' in page


def test_return_to_go_equals_the_plain_sum() -> None:
    rewards = np.arange(7, dtype=np.float32)
    episode = np.array([0, 0, 0, 4, 5, 5, 5])
    expected = [0 + 0.5 + 0.5, 1 + 1, 2, 3, 4 + 2.5 + 1.5, 5 + 3, 6]
    assert_allclose(return_to_go(rewards, episode, discount=0.5), expected)


def test_state_map_keeps_the_widest_directions() -> None:
    generator = np.random.default_rng(5)
    common = generator.normal(size=(400, 1))
    states = np.concatenate([common, common + 0.1 * generator.normal(size=(400, 1))], axis=1)
    states = np.concatenate([states, np.full((400, 1), 7.0)], axis=1)
    plane = state_map(states)
    assert plane.shape == (400, 2)
    assert plane[:, 0].std() > 5 * plane[:, 1].std()
    assert state_map(states[:, :1]).shape == (400, 2)
