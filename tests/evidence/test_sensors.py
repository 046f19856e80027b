"""A stuck sensor is told from one that rests, as rarely wrongly as stated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evidence.test_alarm import LENGTH, walks
from icql.data.transitions import DataInfo, Transitions
from icql.errors import UserError
from icql.evidence.movement import NOISE, SPAN, fit_movement, since
from icql.evidence.sensors import fit_sensors, joint_limits
from icql.evidence.stillness import FOREVER, longest_run, runs

STEPS = 80  # of an episode with a door
DOOR = 2  # its column


def slow(episodes: int, seed: int) -> Transitions:
    """Walks whose third column moves now and then, and whose last one never does."""
    log, rng = walks(episodes, seed), np.random.default_rng(seed + 100)
    states = log.states.copy().reshape(episodes, LENGTH, 4)
    moves = rng.uniform(size=(episodes, LENGTH)) < 0.7
    moves[:, -1] = True
    moves[:, 0] = True
    at = np.maximum.accumulate(np.where(moves, np.arange(LENGTH), 0), axis=1)
    states[..., 2] = np.take_along_axis(states[..., 2], at, 1)
    states[..., 3] = 5.0
    return replace(log, states=states.reshape(-1, 4))


def doors(episodes: int, seed: int) -> Transitions:
    """An arm that sweeps at one of two heights: at the upper one it takes a door along.

    It rests before and after, and in the other episodes throughout: standing still is no sign.
    """
    rng = np.random.default_rng(seed)
    t = np.arange(STEPS)[None]
    begun = rng.integers(15, 40, size=(episodes, 1))
    swept = np.clip((t - begun) / 20, 0, 1)
    upper = rng.uniform(size=(episodes, 1)) < 0.6
    noise = 0.02 * rng.normal(size=(2, episodes, STEPS))
    arm, height = swept + noise[0], np.where(upper, 1.0, -1.0) + noise[1]
    states = np.stack([arm, height, np.where(upper, swept, 0)], -1).astype(np.float32)
    flat, none = states.reshape(-1, 3), np.zeros(episodes * STEPS, np.float32)
    return Transitions(
        states=flat,
        actions=none[:, None],
        rewards=none,
        next_states=flat,
        next_actions=none[:, None],
        mask=none,
        episode=np.repeat(np.arange(episodes), STEPS).astype(np.int32),
        step=np.tile(np.arange(STEPS), episodes).astype(np.int32),
        info=DataInfo("doors"),
    )


def test_how_long_columns_stay():
    states = np.float32([[1, 0], [1, 1], [1, 1], [2, 1], [2, 1]])
    assert runs(states).tolist() == [[1, 1], [2, 1], [3, 2], [1, 3], [2, 4]]
    assert longest_run(runs(states)).tolist() == [3, 4]
    assert longest_run(runs(states[3:])).tolist() == [FOREVER, FOREVER]


def test_what_was_missed_is_kept_until_the_column_moves():
    apart, still = np.array([0, 2.0, 1, 0, 3, 0]), np.array([1, 2, 3, 1, 2, 3])
    assert since(apart, still).tolist() == [0, 2, 2, 0, 3, 3]


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_limits_are_exceeded_as_rarely_as_stated(rate):
    rng, wrong, alone = np.random.default_rng(0), [], []
    for _ in range(200):
        signs = np.zeros((201, 12))
        signs[:, :3] = rng.exponential(size=(201, 3))
        signs[:, 3:6] = signs[:, :3] + 0.1 * rng.exponential(size=(201, 3))  # say the same
        limit, kept = joint_limits(signs[:-1], rate)
        assert kept <= rate
        wrong.append((signs[-1] > limit).any())
        alone.append((signs[:-1] > limit).any(axis=1).mean())
    assert np.mean(wrong) <= rate + 0.03
    # were each of the twelve given its part of the rate, less than half of this would be used
    assert np.mean(alone) > rate / 2


def test_few_rows_keep_less_and_say_so():
    limit, kept = joint_limits(np.array([[1.0, 0, 5], [2, 0, 5], [0, 0, 5]]), 0.05)
    assert limit.tolist() == [2, 0, 5]
    assert kept == 2 / 4  # one of three has the largest of any


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_new_episodes_are_called_stuck_as_rarely_as_stated(rate):
    sensors = fit_sensors(slow(1000, 0), rate=rate)
    assert sensors.rate == pytest.approx(rate)
    assert sensors.watched.tolist() == [True, True, True, False]
    assert sensors.still[:2].tolist() == [1, 1]
    new = slow(1000, 1).states.reshape(1000, LENGTH, 4)
    wrong = np.mean([sensors(one).any() for one in new])
    assert wrong <= rate + 0.02
    assert wrong > 0  # the limit is not simply beyond everything


@pytest.mark.parametrize("column", [0, 2])
def test_a_sensor_stuck_at_a_typical_value_is_caught_and_named(column):
    sensors = fit_sensors(slow(300, 0))
    one = slow(1, 7).states.copy()
    one[3:, column] = one[3, column]
    found = sensors(one)
    assert found[3 + sensors.still[column] :, column].all()
    assert not np.delete(found, column, axis=1).any()


def test_a_door_that_should_have_opened_is_caught_though_doors_rest():
    sensors = fit_sensors(doors(100, 0))
    assert not sensors.watched[DOOR]  # it stands still for whole episodes
    new = doors(60, 1).states.reshape(60, STEPS, 3)
    assert np.mean([sensors(one).any() for one in new]) <= sensors.rate + 0.03
    caught, differ, resting = 0, 0, []
    for one in new:
        stuck = one.copy()
        stuck[:, DOOR] = 0
        found = sensors(stuck)[:, DOOR]
        wrong = one[:, DOOR] > 2 * NOISE * sensors.movement.spread[DOOR]
        caught, differ = caught + found[wrong].sum(), differ + wrong.sum()
        resting += [] if wrong.any() else [found.any()]
        assert not found[: SPAN + 1].any()  # nothing can be told so early
    assert caught / differ > 0.95
    assert np.mean(resting) < 0.1  # where it would have rested, nobody can tell


def test_a_logged_episode_is_not_compared_with_itself():
    states = doors(30, 0).states.copy()
    opened = int(np.argmax(states.reshape(30, STEPS, 3)[:, -1, DOOR]))
    rows = slice(opened * STEPS, (opened + 1) * STEPS)
    states[rows, DOOR] = 0  # the one episode in which the door was stuck
    movement = fit_movement(states, [(i, i * STEPS, STEPS) for i in range(30)])
    still = runs(states[rows])
    assert movement.missed(states[rows], still).max() == 0
    assert movement.missed(states[rows], still, np.full(STEPS, opened)).max() > 0.5


def test_few_episodes_promise_less_and_say_so():
    sensors = fit_sensors(slow(9, 0), rate=0.05)
    assert 0.1 < sensors.rate <= 0.4
    with pytest.raises(UserError, match=r"must have shape \(T, 4\)"):
        sensors(np.zeros((3, 5)))
    with pytest.raises(UserError, match="not finite"):
        sensors(np.full((3, 4), np.nan))
    with pytest.raises(UserError, match="between 0 and 1"):
        fit_sensors(slow(9, 0), rate=0)
