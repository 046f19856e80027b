"""Data: episodes become the right transitions, every source reads back, bad input is named."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
import warnings
import zipfile
from dataclasses import replace
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from icql.data import (
    DataInfo,
    Steps,
    Task,
    Transitions,
    checks,
    get_task,
    list_tasks,
    load_dataset,
    register_task,
    tasks,
)
from icql.data.d4rl import read_d4rl
from icql.data.minari_source import read_minari
from icql.data.npz import read_npz, write_npz
from icql.data.tasks import find_task
from icql.errors import UserError

D4RL_DIR = os.environ.get("ICQL_D4RL_DIR")
real_data = pytest.mark.skipif(D4RL_DIR is None, reason="ICQL_D4RL_DIR is not set")
LIMIT = 5
SHORT = Task("short", "Hopper-v4", "mujoco", 0.0, 10.0, LIMIT)


def log(length: int, *, terminals: Any = (), timeouts: Any = (), **more: Any) -> Steps:
    """Row i observes (i, -i), acts i/100 and is paid i, so that a mixed-up row shows."""
    row = np.arange(length, dtype=np.float32)
    flags = np.zeros((2, length), np.bool_)
    flags[0, list(terminals)] = True
    flags[1, list(timeouts)] = True
    return Steps(np.stack([row, -row], 1), row[:, None] / 100, row, flags[0], flags[1], **more)


def successors(steps: Steps) -> np.ndarray:
    """Next observations as a simulator records them: a row of its own after an episode's end."""
    following = np.roll(steps.observations, -1, axis=0)
    following[steps.terminals | steps.timeouts] = 1000
    return following


def write_hdf5(path: pathlib.Path, steps: Steps, *, leave_out: Any = (), **more: Any) -> None:
    arrays = {
        "observations": steps.observations,
        "actions": steps.actions,
        "rewards": steps.rewards,
        "terminals": steps.terminals,
        "timeouts": steps.timeouts,
        "next_observations": steps.next_observations,
        "valid": steps.valid,
        "infos/qpos": np.zeros(3),
    } | more
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            if array is not None and name not in leave_out:
                file[name] = array


def rows_of(data: Transitions) -> list[int]:
    return [int(s[0]) for s in data.states]


# --- Episodes → transitions -----------------------------------------------------------------


def test_hand_worked_log() -> None:
    # Episode 0: rows 0-2, terminal. Episode 1: rows 3-5, cut. Episode 2: rows 6-8, log stops.
    data = Transitions.from_steps(log(9, terminals=[2], timeouts=[5]))
    assert rows_of(data) == [0, 1, 2, 3, 4, 6, 7]
    assert_array_equal(data.rewards, [0, 1, 2, 3, 4, 6, 7])
    assert_array_equal(data.next_states[:, 0], [1, 2, 2, 4, 5, 7, 8])
    assert_array_equal(data.next_actions[:, 0], np.float32([1, 2, 0, 4, 5, 7, 8]) / 100)
    assert_array_equal(data.mask, [1, 1, 0, 1, 1, 1, 1])
    assert_array_equal(data.episode, [0, 0, 0, 1, 1, 2, 2])
    assert_array_equal(data.step, [0, 1, 2, 0, 1, 0, 1])
    assert (data.observation_dim, data.action_dim, len(data)) == (2, 1, 7)
    assert data.info.episode_returns == (3.0, 12.0)  # the third episode is not whole
    assert data.info.episode_lengths == (3, 3)
    assert {a.dtype for a in (data.states, data.mask)} == {np.dtype(np.float32)}
    assert {a.dtype for a in (data.episode, data.step)} == {np.dtype(np.int32)}


def test_terminal_last_row_needs_a_recorded_successor() -> None:
    steps = log(4, terminals=[1, 3])
    assert rows_of(Transitions.from_steps(steps)) == [0, 1, 2]
    recorded = replace(steps, next_observations=successors(steps))
    kept = Transitions.from_steps(recorded)
    assert rows_of(kept) == [0, 1, 2, 3]
    assert_array_equal(kept.next_states[:, 0], [1, 1000, 3, 1000])
    assert rows_of(Transitions.from_steps(replace(recorded, drop_last=True))) == [0, 1, 2]


def test_truncated_last_row_is_left_out_even_with_its_successor() -> None:
    steps = log(4, timeouts=[3])
    recorded = replace(steps, next_observations=successors(steps))
    assert rows_of(Transitions.from_steps(recorded)) == [0, 1, 2]


def test_step_with_both_flags_ended_the_task() -> None:
    data = Transitions.from_steps(log(4, terminals=[1], timeouts=[1]))
    assert rows_of(data) == [0, 1, 2]
    assert_array_equal(data.mask, [1, 0, 1])


def test_single_step_episodes() -> None:
    data = Transitions.from_steps(log(4, terminals=[0, 2], timeouts=[1]))
    assert rows_of(data) == [0, 2]
    assert_array_equal(data.episode, [0, 2])
    assert_array_equal(data.next_states[:, 0], [0, 2])


def test_invalid_rows_and_their_predecessors_are_left_out() -> None:
    steps = log(8, terminals=[3, 7])
    valid = np.ones(8, np.bool_)
    valid[[1, 4]] = False
    steps.observations[1] = np.nan
    steps.rewards[4] = np.inf
    info = DataInfo("x", source="x.hdf5", warnings=("before",))
    data = Transitions.from_steps(replace(steps, valid=valid), info, task=SHORT)
    # 0 would lead to 1; 3 is terminal, so its neighbour 4 does not matter.
    assert rows_of(data) == [2, 3, 5, 6]
    assert_array_equal(data.step, [2, 3, 1, 2])
    assert data.info.dropped == 2
    assert data.info.warnings == (
        "before",
        "x.hdf5: 2 of 8 rows are marked invalid and left out; 4 of 7 transitions remain.",
    )
    assert data.info.episode_returns == ()  # no episode is whole


def test_valid_marks_on_good_rows_warn_of_nothing() -> None:
    data = Transitions.from_steps(replace(log(3, timeouts=[2]), valid=np.ones(3, np.bool_)))
    assert (data.info.dropped, data.info.warnings) == (0, ())
    assert data.info.episode_returns == (3.0,)


def test_actions_are_clipped_and_wide_ones_reported() -> None:
    steps = log(3, timeouts=[2])
    steps.actions[:, 0] = [1, -3, 2]
    data = Transitions.from_steps(steps, DataInfo("x"))
    assert_array_equal(data.actions[:, 0], np.float32([1 - 1e-5, -(1 - 1e-5)]))
    assert_array_equal(data.next_actions[:, 0], np.float32([-(1 - 1e-5), 1 - 1e-5]))
    assert data.info.warnings == (
        "x: 1 of 2 actions lie beyond ±1: they were clipped to ±0.99999.",
    )
    unclipped = Transitions.from_steps(steps, action_clip=None)
    assert_array_equal(unclipped.actions[:, 0], [1, -3])


@st.composite
def flagged_logs(draw: st.DrawFn) -> Steps:
    length = draw(st.integers(2, 30))
    rows = st.sets(st.integers(0, length - 1))
    steps = log(length, terminals=draw(rows), timeouts=draw(rows))
    if draw(st.booleans()):
        steps = replace(steps, next_observations=successors(steps))
    if draw(st.booleans()):
        valid = np.ones(length, np.bool_)
        valid[list(draw(rows))] = False
        steps = replace(steps, valid=valid)
    return replace(steps, drop_last=draw(st.booleans()))


def expected_rows(steps: Steps) -> list[tuple[int, int | None, int, int]]:
    """(row, next row or None at a terminal, episode, step), one row after the other."""
    found, episode, step = [], 0, 0
    valid = [True] * len(steps) if steps.valid is None else list(steps.valid)
    for i in range(len(steps)):
        last = i == len(steps) - 1
        if steps.terminals[i]:
            unknown = steps.drop_last or steps.next_observations is None
            if valid[i] and not (last and unknown):
                found.append((i, None, episode, step))
        elif not steps.timeouts[i] and not last and valid[i] and valid[i + 1]:
            found.append((i, i + 1, episode, step))
        step += 1
        if steps.terminals[i] or steps.timeouts[i]:
            episode, step = episode + 1, 0
    return found


@given(flagged_logs())
def test_transitions_equal_a_plain_loop(steps: Steps) -> None:
    expected = expected_rows(steps)
    if not expected or not (steps.terminals | steps.timeouts).any():
        with pytest.raises(UserError):
            Transitions.from_steps(steps)
        return
    data = Transitions.from_steps(steps)
    rows, following, episode, step = zip(*expected, strict=True)
    assert_array_equal(data.states, steps.observations[list(rows)])
    assert_array_equal(data.actions, steps.actions[list(rows)])
    assert_array_equal(data.rewards, steps.rewards[list(rows)])
    assert_array_equal(data.episode, episode)
    assert_array_equal(data.step, step)
    assert_array_equal(data.mask, [n is not None for n in following])
    for n, row, next_state, next_action in zip(
        following, rows, data.next_states, data.next_actions, strict=True
    ):
        recorded = steps.next_observations
        if n is None:
            own = steps.observations[row] if recorded is None else recorded[row]
            assert_array_equal(next_state, own)
            assert_array_equal(next_action, [0])
        else:
            assert_array_equal(next_state, steps.observations[n])
            assert_array_equal(next_action, steps.actions[n])


def test_content_hash_sees_every_array_and_nothing_else() -> None:
    steps = log(6, terminals=[2], timeouts=[5])
    data = Transitions.from_steps(steps)
    assert data.content_hash() == Transitions.from_steps(steps, DataInfo("other")).content_hash()
    names = ("states", "actions", "rewards", "next_states", "next_actions", "mask")
    changed = {replace(data, **{n: getattr(data, n) + 1}).content_hash() for n in names}
    changed |= {replace(data, episode=data.episode + 1).content_hash()}
    changed |= {replace(data, step=data.step + 1).content_hash(), data.content_hash()}
    assert len(changed) == 9
    with pytest.raises(ValueError, match="read-only"):
        data.states[0] = 0


def test_subset_keeps_order_and_info() -> None:
    data = Transitions.from_steps(log(6, timeouts=[5]), DataInfo("x"))
    part = data.subset(np.array([3, 1]))
    assert rows_of(part) == [3, 1]
    assert part.info == data.info
    assert part.content_hash() != data.content_hash()


def test_arrays_of_different_lengths_are_a_programming_error() -> None:
    data = Transitions.from_steps(log(6, timeouts=[5]))
    with pytest.raises(ValueError, match="mask has 2 rows"):
        replace(data, mask=data.mask[:2])


def broken(**changes: Any) -> Steps:
    return replace(log(6, terminals=[2], timeouts=[5]), **changes)


def with_nan(name: str, row: int, column: int | None = None) -> Steps:
    steps = log(6, terminals=[2], timeouts=[5])
    steps = replace(steps, next_observations=steps.observations.copy())
    getattr(steps, name)[row if column is None else (row, column)] = np.nan
    return steps


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (log(6), "no episode ends in its 6 rows.*terminals.*timeouts"),
        (log(1, timeouts=[0]), "no whole transition"),
        (log(0), "zero rows"),
        (broken(rewards=np.zeros(5)), "different lengths: observations 6.*rewards 5"),
        (broken(valid=np.ones(4)), "different lengths.*valid 4"),
        (broken(observations=np.zeros(6)), r"`observations` has shape \(6,\)"),
        (broken(observations=np.zeros((6, 0))), r"`observations` has shape \(6, 0\)"),
        (broken(actions=np.arange(6)), r"`actions` has shape \(6,\)"),
        (broken(rewards=np.zeros((6, 2))), r"`rewards` has shape \(6, 2\)"),
        (broken(actions=np.full((6, 1), "a")), "`actions` holds values of type <U1"),
        (broken(rewards=np.full(6, None)), "`rewards` holds values of type object"),
        (broken(terminals=np.full(6, 0.5)), "`terminals` is 0.5 at row 0"),
        (broken(timeouts=np.full(6, np.nan)), "`timeouts` is nan at row 0"),
        (broken(next_observations=np.zeros((6, 3))), "different numbers of columns"),
        (broken(rewards=np.full(6, 1e300)), r"`rewards` is not .* row 0 \(6 such rows\)"),
        (with_nan("observations", 4, 1), "`observations` is not .* row 4, column 1"),
        (with_nan("actions", 2, 0), "`actions` is not .* row 2, column 0"),
        (with_nan("rewards", 3), "`rewards` is not .* row 3"),
        (with_nan("next_observations", 5, 0), "`next_observations` is not .* row 5, column 0"),
        (replace(with_nan("rewards", 3), valid=np.ones(6)), "`rewards` is not .* row 3"),
    ],
)
def test_bad_steps_are_named(steps: Steps, message: str) -> None:
    with pytest.raises(UserError, match=f"^log.hdf5: .*{message}"):
        Transitions.from_steps(steps, DataInfo("log", source="log.hdf5"))


# --- Tasks ----------------------------------------------------------------------------------


def test_the_papers_18_tasks() -> None:
    paper = [get_task(name) for name in list_tasks() if get_task(name).transitions is not None]
    assert len(paper) == 18
    assert sum(task.transitions or 0 for task in paper) == 12_687_515
    assert get_task("halfcheetah-medium-v2").transitions == 999_000
    assert {task.max_episode_steps for task in paper if task.domain == "mujoco"} == {1000}
    mixed = get_task("kitchen-mixed-v0")
    assert mixed.kitchen_tasks == ("microwave", "kettle", "bottom burner", "light switch")
    assert get_task("hopper-mini").env_id == "Hopper-v4"


def test_normalized_score() -> None:
    door = get_task("door-human-v1")
    assert door.normalized_score(-56.512833) == 0
    assert door.normalized_score(2880.5693087298737) == 100
    assert_array_equal(
        get_task("kitchen-mixed-v0").normalized_score(np.array([0.0, 1.0, 4.0])), [0, 25, 100]
    )


def test_kitchen_scores_the_most_tasks_done_others_the_sum() -> None:
    steps = replace(log(6, terminals=[2, 5]), rewards=np.float32([0, 1, 1, 2, 4, 3]))
    kitchen, hopper = get_task("kitchen-complete-v0"), get_task("hopper-mini")
    info = Transitions.from_steps(steps, task=kitchen).info
    assert (info.task, info.episode_scores) == ("kitchen-complete-v0", (1.0, 4.0))
    assert kitchen.behaviour_score(info) == 62.5
    assert info.episode_returns == (2.0, 9.0)
    info = Transitions.from_steps(steps, task=hopper).info
    assert info.episode_scores == (2.0, 9.0)
    assert hopper.behaviour_score(DataInfo("empty")) is None


def test_unknown_task_names_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean 'hopper-medium-v2'"):
        get_task("hoper-medium-v2")


def test_register_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_TASKS", dict(tasks._TASKS))
    register_task(SHORT)
    assert get_task("short") is SHORT
    with pytest.raises(UserError, match="'short' is registered already"):
        register_task(SHORT)


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("kitchen-complete-v0.hdf5", "kitchen-complete-v0"),
        ("some/folder/hopper_medium_replay-v2.hdf5", "hopper-medium-replay-v2"),
        ("hopper-medium-v2-first-half.npz", "hopper-medium-v2"),
        ("mini_kitchen_microwave_kettle_light_slider-v0.hdf5", "kitchen-complete-v0"),
        ("hopper-mini", "hopper-mini"),
        ("D4RL/door/human-v2", None),
        ("hopper-medium-v20.hdf5", None),
        ("hopper.npz", "hopper"),
        ("hopper-medium-replay.npz", None),
        ("my-log.hdf5", None),
    ],
)
def test_task_from_a_file_name(name: str, task: str | None) -> None:
    found = find_task(name)
    assert (found and found.name) == task


# --- D4RL files -----------------------------------------------------------------------------


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
    read = read_d4rl(path, SHORT)
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
    steps = read_d4rl(f"{D4RL_DIR}/kitchen-partial-v0.hdf5", get_task("kitchen-partial-v0"))
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


@pytest.mark.parametrize("suffix", ["hdf5", "npz"])
def test_truncated_files_are_named(tmp_path: pathlib.Path, suffix: str) -> None:
    path = tmp_path / f"log.{suffix}"
    steps = log(600, terminals=[2], timeouts=[599])
    write_hdf5(path, steps) if suffix == "hdf5" else write_npz(path, steps)
    whole = path.read_bytes()
    for length in np.linspace(0, len(whole) - 1, 20, dtype=int):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=rf"log.{suffix}: it cannot be read"):
            load_dataset(path)


# --- Our own files --------------------------------------------------------------------------


@pytest.mark.parametrize("recorded", [True, False])
def test_npz_round_trip(tmp_path: pathlib.Path, recorded: bool) -> None:
    steps = log(9, terminals=[2, 8], timeouts=[5])
    if recorded:
        steps = replace(steps, next_observations=successors(steps))
    steps = replace(steps, valid=np.arange(9) != 4)
    path = tmp_path / "new" / "log.npz"
    write_npz(path, steps, {"task": "hopper-mini", "who": "é"})
    back, meta = read_npz(path)
    assert meta == {"task": "hopper-mini", "who": "é"}
    for name in ("observations", "actions", "rewards", "terminals", "timeouts", "valid"):
        assert_array_equal(getattr(back, name), getattr(steps, name))
    data = load_dataset(path)
    assert data.content_hash() == Transitions.from_steps(steps).content_hash()
    assert data.info.task == "hopper-mini"
    assert list(path.parent.iterdir()) == [path]  # no temporary file stays behind


def test_npz_of_ones_own_may_record_every_successor(tmp_path: pathlib.Path) -> None:
    steps = log(6, terminals=[2], timeouts=[5])
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    arrays = {name: getattr(steps, name) for name in names}
    following = np.vstack([steps.observations[1:], steps.observations[:1]]) + 0.5
    np.savez(tmp_path / "log.npz", **arrays, next_observations=following)
    data = load_dataset(tmp_path / "log.npz")
    np.testing.assert_array_equal(data.next_states, following[[0, 1, 2, 3, 4]].astype(np.float32))
    np.savez(
        tmp_path / "two.npz", **arrays, next_observations=following, final_observations=following
    )
    with pytest.raises(UserError, match="both `next_observations` and `final_observations`"):
        load_dataset(tmp_path / "two.npz")


def test_npz_of_a_log_that_stops_inside_an_episode(tmp_path: pathlib.Path) -> None:
    steps = log(5, terminals=[1])
    steps = replace(steps, next_observations=successors(steps))
    write_npz(tmp_path / "log.npz", steps)
    data = load_dataset(tmp_path / "log.npz")
    assert rows_of(data) == [0, 1, 2, 3]
    assert_array_equal(data.next_states[:, 0], [1, 1000, 3, 4])


def test_npz_keeps_d4rls_last_row_rule(tmp_path: pathlib.Path) -> None:
    steps = log(5, terminals=[4], drop_last=True)
    write_npz(tmp_path / "log.npz", replace(steps, next_observations=successors(steps)))
    assert rows_of(load_dataset(tmp_path / "log.npz")) == [0, 1, 2, 3]


def test_npz_bytes_are_the_same_every_time(tmp_path: pathlib.Path) -> None:
    steps = log(9, terminals=[2], timeouts=[8])
    write_npz(tmp_path / "a.npz", steps, {"b": 1, "a": 2})
    write_npz(tmp_path / "b.npz", steps, {"a": 2, "b": 1})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        assert {member.date_time[0] for member in archive.infolist()} == {1980}


def test_npz_refuses_to_write_what_it_cannot_hold(tmp_path: pathlib.Path) -> None:
    steps = log(5, terminals=[4])
    jump = replace(steps, next_observations=np.full_like(steps.observations, 7))
    with pytest.raises(UserError, match="next observation of row 0 is not row 1"):
        write_npz(tmp_path / "log.npz", jump)
    with pytest.raises(TypeError):
        write_npz(tmp_path / "log.npz", steps, {"not": object()})
    assert list(tmp_path.iterdir()) == []


class Trap:
    def __reduce__(self) -> Any:
        return os.mkdir, ("sprung",)


def test_npz_with_pickles_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arrays = {n: getattr(log(3, timeouts=[2]), n) for n in ("observations", "actions", "rewards")}
    trap = np.array([Trap(), None, None])
    np.savez("log.npz", **arrays, terminals=trap, timeouts=np.ones(3))
    with pytest.raises(UserError, match=r"log\.npz: `terminals` holds values of type object"):
        load_dataset("log.npz")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": None}, "`rewards` is missing; it has actions, meta"),
        ({"final_observations": np.zeros((5, 2))}, r"`final_observations` has shape \(5, 2\)"),
        ({"meta": np.frombuffer(b"{", np.uint8)}, "`meta` is not JSON"),
        ({"meta": np.frombuffer(b"[]", np.uint8)}, "`meta` is not a JSON object"),
        ({"actions": np.full((6, 1), np.inf)}, "`actions` is not a finite number at row 0"),
    ],
)
def test_bad_npz_is_named(tmp_path: pathlib.Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "log.npz"
    write_npz(path, log(6, terminals=[2], timeouts=[5]))
    with np.load(path, allow_pickle=False) as file:
        arrays = {**file, **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(UserError, match=f"log.npz: {message}"):
        load_dataset(path)


def test_npz_header_that_claims_too_much(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.npz"
    steps = log(6, terminals=[2], timeouts=[5])
    np.savez(path, **{n: getattr(steps, n) for n in ("actions", "rewards", "terminals")})
    with zipfile.ZipFile(path, "a") as archive:
        for name, shape in {"observations": (10**9, 10**3), "timeouts": (6,)}.items():
            header = json.dumps({"descr": "<f4", "fortran_order": False, "shape": "S"})
            header = header.replace('"S"', str(shape)).replace("false", "False").ljust(117) + "\n"
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00v\x00" + header.encode() + bytes(24))
    with pytest.raises(UserError, match="`observations` does not have the size its header claims"):
        load_dataset(path)


def test_npz_that_unpacks_to_more_than_memory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.npz"
    steps = log(100_000, timeouts=[99_999])
    write_npz(path, replace(steps, observations=np.zeros((100_000, 100))))
    assert path.stat().st_size < 1_000_000
    monkeypatch.setattr(checks, "memory_limit", lambda: 10_000_000)
    with pytest.raises(UserError, match=r"log.npz: its arrays need .* over the limit of 0.0 GB"):
        load_dataset(path)


@given(st.data())
def test_damaged_npz_gives_data_or_a_message(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.npz"
    write_npz(path, log(6, terminals=[2], timeouts=[5]))
    content = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=5)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with contextlib.suppress(UserError):
        assert len(load_dataset(path)) > 0


# --- Minari ---------------------------------------------------------------------------------


@pytest.fixture
def minari_dataset(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Four real episodes: terminal, cut and marked so, terminal, cut without a mark."""
    minari = pytest.importorskip("minari")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = gymnasium.make("InvertedPendulum-v5")
    env.action_space.seed(0)
    buffers = []
    for episode, limit in enumerate([1000, 2, 1000, 2]):
        observation, _ = env.reset(seed=episode)
        buffer = EpisodeBuffer(episode, None, None, [observation], [], [], [], [])
        ended = False
        while not ended and len(buffer.rewards) < limit:
            action = env.action_space.sample()
            observation, reward, ended, _, _ = env.step(action)
            buffer.observations.append(observation)
            buffer.actions.append(action)
            buffer.rewards.append(reward)
            buffer.terminations.append(ended)
            buffer.truncations.append(episode == 1 and len(buffer.rewards) == limit)
        buffers.append(buffer)
    env.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari asks for an author and a code link
        minari.create_dataset_from_buffers(
            "test/pendulum-v0", buffers, env=env.spec, eval_env=env.spec
        )
    return buffers


@pytest.mark.parametrize("name", ["minari:test/pendulum-v0", "test/pendulum-v0", "folder"])
def test_minari_round_trip(minari_dataset: list[Any], tmp_path: pathlib.Path, name: str) -> None:
    data = load_dataset(str(tmp_path / "test/pendulum-v0") if name == "folder" else name)
    first, cut, last, _ = minari_dataset
    lengths = [len(first.rewards), 1, len(last.rewards), 1]
    assert np.bincount(data.episode).tolist() == lengths
    terminal = np.flatnonzero(data.mask == 0)
    assert terminal.tolist() == [lengths[0] - 1, sum(lengths[:3]) - 1]
    for row, buffer in zip(terminal, (first, last), strict=True):
        assert_array_equal(data.next_states[row], np.float32(buffer.observations[-1]))
    assert_array_equal(data.states[lengths[0]], np.float32(cut.observations[0]))
    assert_array_equal(data.next_actions[lengths[0]], cut.actions[1])
    assert data.info.episode_returns == tuple(float(sum(b.rewards)) for b in minari_dataset)
    # The pendulum's actions reach ±3 and no task says otherwise: they stay as they are.
    assert np.abs(data.actions).max() > 1
    assert "lie beyond ±1: policies act in [-1, 1]" in data.info.warnings[0]


@pytest.mark.usefixtures("minari_dataset")
def test_minari_problems_are_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="test/other-v0: there is no such Minari dataset"):
        load_dataset("minari:test/other-v0")
    file = tmp_path / "test/pendulum-v0/data/main_data.hdf5"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot be read as a Minari dataset"):
        read_minari("test/pendulum-v0")
    (file.parent / "metadata.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read as a Minari dataset"):
        read_minari("test/pendulum-v0")
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(UserError, match=r"not installed. pip install 'icql\[minari\]'"):
        read_minari("test/pendulum-v0")


# --- Names ----------------------------------------------------------------------------------


def test_d4rl_names_are_looked_for_in_the_folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ICQL_D4RL_DIR", raising=False)
    with pytest.raises(UserError, match="ICQL_D4RL_DIR is not set"):
        load_dataset("hopper-medium-v2")
    monkeypatch.setenv("ICQL_D4RL_DIR", str(tmp_path))
    with pytest.raises(UserError, match=r"hopper-medium-v2.hdf5 does not exist"):
        load_dataset("hopper-medium-v2")
    write_hdf5(tmp_path / "hopper-medium-v2.hdf5", log(6, terminals=[5]))
    assert load_dataset("hopper-medium-v2").info.task == "hopper-medium-v2"
    assert load_dataset("hopper-medium-v2", task="hopper-mini").info.task == "hopper-mini"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hopper-minni", "no dataset or file 'hopper-minni'. Did you mean 'hopper-mini'"),
        ("nowhere/log.hdf5", "nowhere/log.hdf5: there is no such file"),
        ("nowhere/log.npz", "nowhere/log.npz: there is no such file"),
        ("notes.txt", "notes.txt: data of this kind cannot be read"),
        ("folder.npz", "folder.npz: there is no such file"),
    ],
)
def test_unknown_names(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").touch()
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(UserError, match=message):
        load_dataset(name)
    with pytest.raises(UserError, match="no task 'hoper'"):
        load_dataset(name, task="hoper")


def test_embedded_dataset() -> None:
    data = load_dataset("hopper-mini")
    assert (data.observation_dim, data.action_dim) == (11, 3)
    assert data.info.task == "hopper-mini"
    assert data.info.dropped == 0
    assert len(data.info.episode_returns) > 10
