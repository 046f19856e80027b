"""Data larger than memory on its way to a store: the same transitions, findings and messages."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from data.log_cases import random_log, source
from icql.cli.main import main
from icql.data import load_dataset
from icql.data.datasets import load_steps, make_store, validate_dataset, write_dataset
from icql.data.formats.npz import write_npz
from icql.data.formats.store import ARRAYS, open_store, write_store
from icql.data.transitions import Steps
from icql.data.validation.rules import validate
from icql.errors import UserError


def shrink_blocks(monkeypatch: pytest.MonkeyPatch, block: int = 40) -> None:
    """Blocks of a few rows, so that every episode spans several."""
    monkeypatch.setattr("icql.data.arrays.BLOCK", block)
    monkeypatch.setattr("icql.data.formats.csv_log.BLOCK_BYTES", 300)


def steps(rows: int = 400, *, seed: int = 0, recorded: bool = False) -> Steps:
    rng = np.random.default_rng(seed)
    s = rng.normal(size=(rows, 3)).astype(np.float32)
    ends = np.arange(rows) % 23 == 22
    return Steps(
        s,
        rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        rng.normal(size=rows).astype(np.float32),
        ends & (rng.random(rows) < 0.5),
        ends,
        np.roll(s, -1, 0) if recorded else None,
        valid=rng.random(rows) > 0.02,
        drop_last=True,
    )


def write_hdf5(path: Path, log: Steps) -> None:
    with h5py.File(path, "w") as file:
        file["observations"] = log.observations.astype(np.float64)  # to be cast on the way
        file.create_dataset("actions", data=log.actions, chunks=(7, 2), compression="gzip")
        file["rewards"] = log.rewards[:, None]
        file["terminals"], file["timeouts"] = log.terminals, log.timeouts.astype(np.float32)
        file["valid"] = log.valid
        if log.next_observations is not None:
            file["next_observations"] = log.next_observations


def write_csv(path: Path, *, shuffled: bool, names: bool) -> None:
    rng = np.random.default_rng(1)
    lines = [
        f"{'run ' if names else ''}{e},{t},{x:.6g},{2 * x:.6g},{rng.normal():.6g},{int(t == 12)}"
        for e in (11, 2, 30, 4)
        for t, x in enumerate(rng.normal(size=13))
    ]
    if shuffled:
        rng.shuffle(lines)
    path.write_text("\n".join(["run,t,x,u,gain,end", *lines]) + "\n")
    path.with_name(f"{path.name}.toml").write_text(
        'observation = ["x"]\naction = ["u"]\nreward = "gain"\nepisode = "run"\ntime = "t"\n'
        'terminal = "end"\naction_bounds = [-9, 9]\n'
    )


def same_as_in_memory(
    log: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, block: int = 40
) -> None:
    """A store of `log`, made in blocks, holds what loading it into memory at once gives."""
    expected = load_dataset(log)
    found = validate(load_steps(log))
    shrink_blocks(monkeypatch, block)
    store = make_store(log, folder / "log.icql", force=True)
    assert store.content_hash() == expected.content_hash()
    for name in ("dropped", "warnings", "task", "name"):
        assert getattr(store.info, name) == getattr(expected.info, name)
    assert store.info.episode_returns == expected.info.episode_returns
    assert store.info.episode_lengths == expected.info.episode_lengths
    assert isinstance(store.states.base, np.memmap | np.ndarray)
    assert validate_dataset(folder / "log.icql")[0].warnings == found.warnings
    assert sorted(p.name for p in folder.iterdir() if p.name.startswith(".")) == []


@pytest.mark.parametrize("recorded", [False, True])
def test_hdf5_in_blocks_gives_the_same_transitions(
    tmp_path: Path, recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = steps(recorded=recorded)
    if recorded:  # successors that are not the next row would be errors
        following = log.next_observations
        assert following is not None
        following[-1] = 0
    write_hdf5(tmp_path / "log.hdf5", log)
    same_as_in_memory(tmp_path / "log.hdf5", tmp_path, monkeypatch)


def test_npz_in_blocks_gives_the_same_transitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_npz(tmp_path / "log.npz", steps(recorded=True), {"task": "hopper-medium-v2"})
    same_as_in_memory(tmp_path / "log.npz", tmp_path, monkeypatch)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("names", [False, True])
def test_csv_in_blocks_gives_the_same_transitions(
    tmp_path: Path, shuffled: bool, names: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(tmp_path / "log.csv", shuffled=shuffled, names=names)
    same_as_in_memory(tmp_path / "log.csv", tmp_path, monkeypatch)


def test_parquet_in_blocks_gives_the_same_transitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(tmp_path / "log.csv", shuffled=True, names=True)
    write_dataset(load_steps(tmp_path / "log.csv"), str(tmp_path / "log.parquet"))
    (tmp_path / "log.csv.toml").unlink()
    same_as_in_memory(tmp_path / "log.parquet", tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["kitchen-complete-v0", "kitchen-partial-v0"])
def test_real_data_in_blocks_gives_the_same_transitions(
    tmp_path: Path, d4rl_dir: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 118 rows of 69 numbers: less than an episode
    same_as_in_memory(d4rl_dir / f"{name}.hdf5", tmp_path, monkeypatch, 2**13)
    if name == "kitchen-partial-v0":
        assert open_store(tmp_path / "log.icql").info.dropped == 1126


def test_rules_do_not_depend_on_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = steps(600, recorded=False)
    copy = slice(46, 69), slice(92, 115)  # an episode twice
    for array in (log.observations, log.actions, log.rewards):
        array[copy[1]] = array[copy[0]]
        array[200] = array[201]  # a step twice
    assert log.valid is not None
    log.valid[46:69], log.valid[92:115], log.valid[199:203] = True, True, True
    log.observations[:, 2], log.actions[300, 1] = 1.0, 2.0
    whole = validate(source(log))
    rules = {finding.rule for finding in (*whole.errors, *whole.warnings)}
    assert rules >= {
        "duplicate_episodes",
        "repeated_steps",
        "constant_dimension",
        "actions_out_of_bounds",
        "invalid_rows",
    }
    monkeypatch.setattr("icql.data.arrays.BLOCK", 10)
    again = validate(source(log))
    assert (again.errors, again.warnings) == (whole.errors, whole.warnings)
    log.observations[311, 1], log.observations[305, 0] = np.nan, np.inf
    log.valid[300:320] = True
    one, other, _ = validate(source(log)).errors  # every column
    assert (one.row, one.column) == (305, "observations[0]")
    assert (other.row, other.column) == (311, "observations[1]")
    assert "in 1 row in all" in one.message


def test_errors_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_blocks(monkeypatch)
    log = steps()
    assert log.valid is not None
    log.rewards[350], log.valid[350] = np.nan, True
    write_hdf5(tmp_path / "log.hdf5", log)
    with pytest.raises(UserError, match=r"log.hdf5, row 350, rewards: not a finite number"):
        make_store(tmp_path / "log.hdf5", tmp_path / "log.icql")
    write_csv(tmp_path / "log.csv", shuffled=False, names=False)
    text = (tmp_path / "log.csv").read_text().splitlines()
    cells = text[40].split(",")
    for cell, message in (
        ("oops", r"row 39.*'gain'|'gain'.*row 39"),
        ("", r"column 'gain' is empty at row 39"),
    ):
        text[40] = ",".join([*cells[:4], cell, *cells[5:]])
        (tmp_path / "log.csv").write_text("\n".join(text))
        with pytest.raises(UserError, match=message):
            make_store(tmp_path / "log.csv", tmp_path / "log.icql")
    assert {p.suffix for p in tmp_path.iterdir()} == {".hdf5", ".csv", ".toml"}


def test_a_budget_too_small_for_the_rows_is_refused(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "log.hdf5", steps())
    with pytest.raises(UserError, match=r"400 rows need at least .* over the budget of 1.0 MB"):
        make_store(tmp_path / "log.hdf5", tmp_path / "log.icql", memory=1_000_000)


def test_a_store_is_replaced_only_by_force_and_nothing_else_ever(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "log.hdf5", steps())
    make_store(tmp_path / "log.hdf5", tmp_path / "log.icql")
    with pytest.raises(UserError, match=r"exists already. Add --force"):
        make_store(tmp_path / "log.hdf5", tmp_path / "log.icql")
    write_hdf5(tmp_path / "log.hdf5", steps(300))
    assert len(make_store(tmp_path / "log.hdf5", tmp_path / "log.icql", force=True)) < 300
    (tmp_path / "mine.icql").mkdir()
    with pytest.raises(UserError, match="exists already"):
        make_store(tmp_path / "log.hdf5", tmp_path / "mine.icql", force=True)


def damaged(kind: str, store: Path) -> None:
    match kind:
        case "missing":
            (store / "rewards.npy").unlink()
        case "truncated":
            os.truncate(store / "states.npy", 2000)
        case "length":
            np.save(store / "mask.npy", np.ones(5, np.float32))
        case "dtype":
            np.save(store / "mask.npy", np.load(store / "mask.npy").astype(np.float64))
        case "objects":
            np.save(store / "mask.npy", np.array([{}] * 5), allow_pickle=True)
        case "width":
            np.save(store / "next_states.npy", np.load(store / "next_states.npy")[:, :2].copy())
        case "header":
            (store / "step.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr': nonsense")
        case "json":
            (store / "store.json").write_text("{")
        case "format":
            (store / "store.json").write_text('{"format": 99}')
        case "key":
            content = json.loads((store / "store.json").read_text())
            del content["data_hash"]
            (store / "store.json").write_text(json.dumps(content))


MESSAGES = {
    "missing": r"rewards.npy: is missing",
    "truncated": r"states.npy: cannot be read as NPY",
    "length": r"mask.npy: has 5 rows",
    "dtype": r"mask.npy: holds float64",
    "objects": r"mask.npy: cannot be read as NPY",
    "width": r"next_states.npy: does not have the shape of states.npy",
    "header": r"step.npy: cannot be read as NPY",
    "json": r"store.json: is not valid JSON",
    "format": r"store.json: does not describe a store of format 1",
    "key": r"store.json: `data_hash` is missing",
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_damaged_store_is_one_clear_message(kind: str, tmp_path: Path) -> None:
    write_hdf5(tmp_path / "log.hdf5", steps())
    make_store(tmp_path / "log.hdf5", tmp_path / "log.icql")
    damaged(kind, tmp_path / "log.icql")
    with pytest.raises(UserError, match=MESSAGES[kind]):
        load_dataset(tmp_path / "log.icql")


def test_a_store_has_a_file_for_each_array(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "log.hdf5", steps())
    data = make_store(tmp_path / "log.hdf5", tmp_path / "log.icql")
    for name in ARRAYS:
        stored = np.load(tmp_path / "log.icql" / f"{name}.npy", allow_pickle=False)
        np.testing.assert_array_equal(stored, getattr(data, name))


def test_commands_work_on_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_hdf5(Path("log.hdf5"), steps())

    def ask(*argv: str) -> dict:
        assert main(["data", *argv, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    made = ask("convert", "log.hdf5", "log.icql", "--memory", "500MB")
    plain, store = ask("show", "log.hdf5"), ask("show", "log.icql")
    assert made["identical"]
    assert sum("invalid" in warning for warning in made["warnings"]) == 1  # once, in one wording
    assert made["transitions"] == plain["transitions"]
    assert {k: v for k, v in store.items() if k != "source"} == {
        k: v for k, v in plain.items() if k != "source"
    }
    assert ask("validate", "log.icql")["transitions"] == plain["transitions"]
    assert ask("coverage", "log.icql")["neighbours"]
    assert main(["data", "convert", "log.hdf5", "log.npz", "--memory", "1GB"]) == 2
    assert "only stores" in capsys.readouterr().err
    assert main(["data", "convert", "log.icql", "log.npz"]) == 2
    assert "a store holds transitions" in capsys.readouterr().err
    shutil.copy("log.icql/rewards.npy", "log.icql/mask.npy")
    with pytest.raises(SystemExit, match="2"):
        main(["data", "validate", "log.icql", "--json"])
    assert "mask.npy was changed" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["rewards", "step", "episode_returns", "episode_lengths"])
def test_a_file_that_is_not_as_written_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "log.icql"
    write_store(store, source(random_log(50)))
    assert main(["data", "show", str(store), "--json"]) == 0
    path = store / f"{name}.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    capsys.readouterr()
    assert main(["data", "show", str(store)]) == 2
    said = capsys.readouterr().err
    assert f"not those that were written: {name}.npy was changed or is damaged" in said


def test_a_description_that_is_not_as_written_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "log.icql"
    write_store(store, source(random_log(50)))
    content = json.loads((store / "store.json").read_text())
    (store / "store.json").write_text(json.dumps(content | {"dropped": 7}))
    with pytest.raises(UserError, match=r"store.json: was changed or is damaged"):
        load_dataset(store)
    for key in ("seal", "sha256"):  # as stores were made before
        del content[key]
    (store / "store.json").write_text(json.dumps(content))
    assert len(load_dataset(store))
