"""D4RL's files give D4RL's rows, and bad files are named."""

from __future__ import annotations

import os
import pathlib
from dataclasses import replace
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from data.log_cases import LIMIT, SHORT, flagged_logs, log, random_log, rows_of, source, write_hdf5
from icql.data import Steps, Transitions, get_task, load_dataset
from icql.data.arrays import Room, read_size
from icql.data.formats.d4rl import read_d4rl, write_d4rl
from icql.errors import UserError

D4RL_DIR = os.environ.get("ICQL_D4RL_DIR")
real_data = pytest.mark.skipif(D4RL_DIR is None, reason="ICQL_D4RL_DIR is not set")


def d4rl_rows(steps: Steps, *, has_timeouts: bool) -> list[tuple[int, bool]]:
    """(row, terminal) by D4RL's rule, row by row; its counter stands at 1 after a terminal."""
    found, counter = [], 0
    for i in range(len(steps) - 1):
        timed_out = steps.timeouts[i] if has_timeouts else counter == LIMIT - 1
        if timed_out:
            counter = 0
            continue
        found.append((i, bool(steps.terminals[i])))
        counter = 1 if steps.terminals[i] else counter + 1
    return found


@settings(deadline=None, max_examples=60)
@given(steps=flagged_logs(), has_timeouts=st.booleans())
def test_d4rl_files_give_d4rls_rows(
    tmp_path_factory: pytest.TempPathFactory, steps: Steps, has_timeouts: bool
) -> None:
    path = tmp_path_factory.mktemp("d4rl") / "log.hdf5"
    steps = replace(steps, valid=None)
    leave_out = () if has_timeouts else ("timeouts",)
    write_hdf5(path, steps, leave_out=leave_out)
    expected = d4rl_rows(steps, has_timeouts=has_timeouts)
    read = read_d4rl(path, SHORT).steps
    if not expected or not (read.terminals | read.timeouts).any():
        return
    data = Transitions.from_steps(read)
    assert [(int(s[0]), m == 0) for s, m in zip(data.states, data.mask, strict=True)] == expected


@real_data
@pytest.mark.parametrize(
    ("name", "episodes", "behaviour"),
    [("kitchen-complete-v0", 19, 100.0), ("door-human-v1", 25, 28.961)],
)
def test_real_files_give_the_papers_counts(name: str, episodes: int, behaviour: float) -> None:
    data = load_dataset(name)
    task = get_task(name)
    assert len(data) == task.transitions
    assert (data.info.name, data.info.task) == (name, name)
    assert (data.info.dropped, data.info.warnings) == (0, ())
    assert len(data.info.episode_returns) == episodes
    assert task.behaviour_score(data.info) == pytest.approx(behaviour, abs=1e-3)
    same = (data.mask[:-1] == 1) & (data.step[1:] == data.step[:-1] + 1)
    assert_array_equal(data.next_states[:-1][same], data.states[1:][same])
    assert_array_equal(data.next_actions[:-1][same], data.actions[1:][same])


@real_data
def test_real_kitchen_partial_leaves_1126_rows_out() -> None:
    data = load_dataset("kitchen-partial-v0")
    (warning,) = data.info.warnings
    assert data.info.dropped == 1126
    assert "kitchen-partial-v0.hdf5: 1,126 of 136,950 rows are marked invalid" in warning
    assert np.isfinite(data.states).all()
    assert np.isfinite(data.next_states).all()

    assert D4RL_DIR is not None
    steps = read_d4rl(f"{D4RL_DIR}/kitchen-partial-v0.hdf5").steps
    assert steps.timeouts.sum() == 12
    filled = replace(
        steps,
        observations=np.nan_to_num(steps.observations),
        rewards=np.nan_to_num(steps.rewards),
        valid=None,
    )
    assert len(Transitions.from_steps(filled)) == 136_937


def test_d4rl_step_with_both_flags_counts_as_timed_out(tmp_path: pathlib.Path) -> None:
    write_hdf5(tmp_path / "log.hdf5", log(6, terminals=[1, 2], timeouts=[2]))
    assert rows_of(load_dataset(tmp_path / "log.hdf5")) == [0, 1, 3, 4]


def test_d4rl_columns_and_numbers_as_flags(tmp_path: pathlib.Path) -> None:
    steps = log(6, terminals=[2, 5])
    column, flags = steps.rewards[:, None], steps.terminals.astype(np.float32)
    write_hdf5(tmp_path / "log.h5", steps, rewards=column, terminals=flags)
    assert rows_of(load_dataset(tmp_path / "log.h5")) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"leave_out": ["actions"]}, "`actions` is missing; it has infos, observations"),
        ({"leave_out": ["timeouts"], "terminals": np.zeros(6)}, "no episode ends"),
        ({"actions": np.full((6, 1), b"x")}, r"`actions` holds values of type \|S1"),
        ({"rewards": h5py.Empty("f4")}, "`rewards` is not an array"),
        ({"leave_out": ["rewards"], "rewards/inner": np.zeros(6)}, "`rewards` is not an array"),
        ({"rewards": np.full(6, np.nan)}, "`rewards` is not a finite number at row 0"),
        ({"timeouts": np.zeros(4)}, "different lengths"),
        ({"observations": np.zeros((6, 2, 2))}, r"`observations` has shape \(6, 2, 2\)"),
    ],
)
def test_bad_hdf5_is_named(tmp_path: pathlib.Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "log.hdf5"
    write_hdf5(path, log(6, terminals=[2], timeouts=[5]), **changes)
    with pytest.raises(UserError, match=f"log.hdf5: .*{message}"):
        load_dataset(path)


def test_huge_hdf5_is_refused_before_it_is_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.hdf5"
    write_hdf5(path, log(6, terminals=[2]), leave_out=["observations"])
    with h5py.File(path, "a") as file:  # chunks never written take no room in the file
        file.create_dataset("observations", (10**12, 17), "f4", chunks=(1000, 17))
    assert path.stat().st_size < 100_000
    with pytest.raises(UserError, match=r"log.hdf5: its arrays need .* over the limit"):
        load_dataset(path)


def test_hdf5_keeps_both_marks_as_a_terminal(tmp_path: pathlib.Path) -> None:
    steps = random_log(40)
    steps.terminals[5] = steps.timeouts[5] = True
    write_d4rl(tmp_path / "log.hdf5", source(steps))
    assert read_d4rl(tmp_path / "log.hdf5").steps.terminals[5]
    with h5py.File(tmp_path / "log.hdf5") as file:
        assert set(file) - {"metadata"} == {
            "observations",
            "actions",
            "rewards",
            "terminals",
            "timeouts",
        }


@pytest.mark.parametrize("content", ["no JSON", "[1]"])
def test_notes_that_are_none_are_named(tmp_path: pathlib.Path, content: str) -> None:
    path = tmp_path / "log.hdf5"
    write_hdf5(path, log(6, terminals=[2, 5]))
    with h5py.File(path, "r+") as file:
        file["metadata/icql"] = content
    with pytest.raises(UserError, match=r"log.hdf5: it cannot be read as HDF5"):
        read_d4rl(path)


def test_a_file_of_ours_keeps_its_task(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.hdf5"
    write_hdf5(path, log(6, terminals=[2, 5]))
    assert read_d4rl(path).task is None
    named = replace(read_d4rl(path), task=get_task("hopper-medium-v2"))
    write_d4rl(tmp_path / "again.hdf5", named)
    assert read_d4rl(tmp_path / "again.hdf5").task == named.task


def secret(folder: pathlib.Path) -> pathlib.Path:
    """A file of somebody else."""
    path = folder / "secret.hdf5"
    with h5py.File(path, "w") as file:
        file["rewards"] = np.arange(9.0)
        file["icql"] = '{"task": "hopper-mini"}'
    np.arange(9.0).tofile(folder / "secret.raw")
    return path


def link(file: h5py.File, other: pathlib.Path) -> None:
    file["rewards"] = h5py.ExternalLink(other, "/rewards")


def link_by_way_of_the_file(file: h5py.File, other: pathlib.Path) -> None:
    file["elsewhere"] = h5py.ExternalLink(other, "/")
    file["rewards"] = h5py.SoftLink("/elsewhere/rewards")


def external(file: h5py.File, other: pathlib.Path) -> None:
    raw = (str(other.with_suffix(".raw")), 0, h5py.h5f.UNLIMITED)
    file.create_dataset("rewards", (9,), np.float64, external=[raw])


def virtual(file: h5py.File, other: pathlib.Path) -> None:
    layout = h5py.VirtualLayout((9,), np.float64)
    layout[:] = h5py.VirtualSource(other, "rewards", (9,))
    file.create_virtual_dataset("rewards", layout)


@pytest.mark.parametrize("prepare", [link, link_by_way_of_the_file, external, virtual])
def test_no_other_file_is_read(tmp_path: pathlib.Path, prepare: Any) -> None:
    path = tmp_path / "log.hdf5"
    write_hdf5(path, log(9, terminals=[2, 8]), leave_out=("rewards",))
    with h5py.File(path, "a") as file:
        prepare(file, secret(tmp_path))
        assert file["rewards"][3] == 3  # it could be
    with pytest.raises(UserError, match=r"`rewards` (is a link|lie in other files)"):
        load_dataset(path)


@pytest.mark.parametrize("name", ["metadata", "metadata/icql"])
def test_notes_are_not_taken_from_other_files(tmp_path: pathlib.Path, name: str) -> None:
    path = tmp_path / "log.hdf5"
    write_hdf5(path, log(9, terminals=[2, 8]))
    with h5py.File(path, "a") as file:
        file[name] = h5py.ExternalLink(secret(tmp_path), "/icql" if "/" in name else "/")
        assert "metadata/icql" in file
    with pytest.raises(UserError, match="is a link to somewhere else"):
        load_dataset(path)


@pytest.mark.parametrize("memory", [None, "100GB"])
def test_a_claim_beyond_any_compression_is_refused(
    tmp_path: pathlib.Path, memory: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kilobyte that claims 400 MB of fill values."""
    path = tmp_path / "log.hdf5"
    write_hdf5(path, log(9, terminals=[2, 8]), leave_out=("observations",))
    with h5py.File(path, "a") as file:
        file.create_dataset("observations", (9, 10**7), np.float32, chunks=(9, 1000))
    monkeypatch.setattr(h5py.Dataset, "__getitem__", None)  # nothing is read
    room = Room(memory=None if memory is None else read_size(memory))
    with pytest.raises(UserError, match=r"claims arrays of 360.* more than any compression"):
        read_d4rl(path, room=room)


def test_a_flipped_bit_of_a_file_of_ours_is_found(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.hdf5"
    write_d4rl(path, source(random_log(200)))
    with h5py.File(path) as file:
        place = file["observations"].id.get_chunk_info(0).byte_offset + 5
        assert all(file[name].fletcher32 for name in ("observations", "actions", "rewards"))
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="cannot be read as HDF5"):
        load_dataset(path)


@pytest.mark.parametrize(("name", "sound"), [("metadata", True), ("metadata/icql/x", False)])
def test_notes_that_are_none_of_ours(tmp_path: pathlib.Path, name: str, sound: bool) -> None:
    path = tmp_path / "log.hdf5"
    write_hdf5(path, log(9, terminals=[2, 8]))
    with h5py.File(path, "a") as file:
        file[name] = 1.0
    if sound:
        assert len(load_dataset(path))
    else:
        with pytest.raises(UserError, match="`metadata/icql` is not one text"):
            load_dataset(path)
