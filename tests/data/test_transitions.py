"""Episodes become the right transitions, and bad steps are named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numpy.testing import assert_array_equal

from data.log_cases import SHORT, flagged_logs, log, random_log, rows_of, successors
from icql.data import DataInfo, Steps, Transitions
from icql.errors import UserError


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


def test_without_last_rule_gives_the_same_transitions() -> None:
    for recorded in (True, False):
        steps = random_log(50, recorded=recorded)
        steps.terminals[-1] = True
        for drop in (True, False):
            before = replace(steps, drop_last=drop)
            after = before.without_last_rule()
            assert not after.drop_last
            hashes = {Transitions.from_steps(s).content_hash() for s in (before, after)}
            assert len(hashes) == 1
    assert steps.terminals[-1]  # the original is left alone
