"""Documents, arrays and weights that know what was written, and whose they are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from icql.data.sealed_arrays import read_arrays, write_arrays
from icql.errors import UserError
from icql.files import write_json
from icql.seals import read_sealed, write_sealed
from icql.training.run_folder import MetricLog, RunFolder
from icql.weights import load_arrays, save_arrays


def test_a_document_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_sealed(path, {"score": 12.5, "seeds": (0, 1)})
    assert read_sealed(path) == {"score": 12.5, "seeds": [0, 1]}
    path.write_text(path.read_text().replace("12.5", "72.5"))
    with pytest.raises(UserError, match="does not match its digest"):
        read_sealed(path)
    write_json(path, {"score": 1.0})  # made before there were digests
    assert read_sealed(path, needed=False) == {"score": 1.0}
    with pytest.raises(UserError, match="does not match its digest"):
        read_sealed(path)


def test_arrays_are_read_in_their_own_place_alone(tmp_path: Path) -> None:
    path, arrays = tmp_path / "part.npz", {"ids": np.arange(3), "away": np.ones(3)}
    write_arrays(path, arrays, "here")
    assert read_arrays(path, "here")["ids"].tolist() == [0, 1, 2]
    with pytest.raises(UserError, match="meant for another place"):
        read_arrays(path, "there")
    path.write_bytes(b"PK\x05\x06" + bytes(18))  # an archive whose contents are gone
    with pytest.raises(UserError, match="holds nothing"):
        read_arrays(path, "here")


def test_weights_say_whose_they_are_and_equal_ones_are_equal_files(tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.safetensors" for i in range(5)]
    for path in files:
        save_arrays(path, {"w": np.ones(3, np.float32)}, of="this run")
    assert len({path.read_bytes() for path in files}) == 1
    assert load_arrays(files[0], of="this run")["w"].tolist() == [1, 1, 1]
    with pytest.raises(UserError, match="is of another run"):
        load_arrays(files[0], of="that run")


def _run(path: Path, seed: int) -> RunFolder:
    plan = {"algo": "bc", "seeds": [seed], "run": {"steps": 1}, "data_hash": "0" * 64}
    run = RunFolder.create(path, {**plan, "signals": {"units": {"valve": "%"}}})
    run.write_result({"score": seed})
    run.write_judged({"verdict": "better"})
    log = MetricLog(run, [], 0)
    log.write(1, "train", {"loss": np.array(float(seed))})
    log.close()
    return run


def test_files_of_another_run_are_refused(tmp_path: Path) -> None:
    mine, other = _run(tmp_path / "mine", 0), _run(tmp_path / "other", 1)
    assert mine.result() == {"score": 0}
    assert [row["loss"] for row in mine.rows()] == [0.0]
    mine.judge_path.write_bytes(mine.result_path.read_bytes())
    with pytest.raises(UserError, match="another run"):
        mine.judged()
    mine.result_path.write_bytes(other.result_path.read_bytes())
    with pytest.raises(UserError, match="another run"):
        mine.result()
    line = other.metrics_path.read_bytes()
    mine.metrics_path.write_bytes(line + line)
    assert [row["loss"] for row in _told(mine)] == []


def _told(run: RunFolder) -> list[dict[str, float]]:
    """Rows that are believed; a damaged line may be refused as well."""
    try:
        return list(run.rows())
    except UserError:
        return []


def test_units_in_run_json_cannot_be_edited(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", 0)
    manifest = json.loads(run.manifest_path.read_text())
    manifest["signals"]["units"]["valve"] = "mm"
    run.manifest_path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="does not match its digest"):
        RunFolder.open(run.path)
