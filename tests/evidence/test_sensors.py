"""A stuck sensor is told from one that rests, as rarely wrongly as stated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evidence.test_alarm import LENGTH, walks
from icql.data.transitions import DataInfo, Transitions
from icql.errors import UserError
from icql.evidence.habits import fit_habits, usual
from icql.evidence.movement import NOISE, SPAN, fit_movement, since
from icql.evidence.sensors import MANY, Fold, Sensors, fit_sensors
from icql.evidence.stillness import FOREVER, courses, leaps, longest_run, runs

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
    return log_of(states)


def log_of(states: np.ndarray) -> Transitions:
    """A log of episodes (episodes, steps, columns)."""
    episodes, steps, width = states.shape
    flat, none = states.reshape(-1, width), np.zeros(episodes * steps, np.float32)
    return Transitions(
        states=flat,
        actions=none[:, None],
        rewards=none,
        next_states=flat,
        next_actions=none[:, None],
        mask=none,
        episode=np.repeat(np.arange(episodes), steps).astype(np.int32),
        step=np.tile(np.arange(steps), episodes).astype(np.int32),
        info=DataInfo("made up"),
    )


def resting(episodes: int, seed: int, columns: int = 6, steps: int = 25) -> Transitions:
    """Columns that rest now and then, in some episodes for much longer than in others."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(episodes, steps, 3)).cumsum(1)
    states = hidden @ np.random.default_rng(1).normal(size=(3, columns))
    moves = rng.uniform(size=states.shape) > rng.uniform(0.3, 0.9, size=(episodes, 1, columns))
    moves[:, 0] = True
    at = np.maximum.accumulate(np.where(moves, np.arange(steps)[None, :, None], 0), axis=1)
    return log_of(np.take_along_axis(states, at, 1).astype(np.float32))


def test_how_long_columns_stay():
    states = np.float32([[1, 0], [1, 1], [1, 1], [2, 1], [2, 1]])
    assert runs(states).tolist() == [[1, 1], [2, 1], [3, 2], [1, 3], [2, 4]]
    assert longest_run(runs(states)).tolist() == [3, 4]
    assert longest_run(runs(states[3:])).tolist() == [FOREVER, FOREVER]


def test_what_was_missed_is_kept_until_the_column_moves():
    apart, still = np.array([0, 2.0, 1, 0, 3, 0]), np.array([1, 2, 3, 1, 2, 3])
    assert since(apart, still).tolist() == [0, 2, 2, 0, 3, 3]


def test_a_leap_counts_from_the_second_state_until_the_column_moves():
    states = np.float32([[0], [3], [3], [3], [4], [4]])
    assert leaps(states, runs(states))[:, 0].tolist() == [0, 0, 3, 3, 0, 1]
    assert leaps(states[1:3], runs(states[1:3])).max() == 0  # it stood there from the start


def test_episodes_do_not_run_into_each_other():
    one = np.float32([[0], [3], [3]])
    course = courses([one, one[1:] + 4, one])
    assert course.starts.tolist() == [0, 3, 5, 8]
    assert course.run[:, 0].tolist() == [1, 1, 2, 1, 2, 1, 1, 2]
    assert course.leap[:, 0].tolist() == [0, 0, 3, 0, 0, 0, 0, 3]
    assert course.largest(course.leap)[:, 0].tolist() == [3, 0, 3]


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_usual_sizes_are_exceeded_as_rarely_as_stated(rate):
    rng, wrong, alone = np.random.default_rng(0), [], []
    for _ in range(200):
        signs = np.zeros((201, 12))
        signs[:, :3] = rng.exponential(size=(201, 3))
        signs[:, 3:6] = signs[:, :3] + 0.1 * rng.exponential(size=(201, 3))  # say the same
        found = usual(signs[:-1], rate)
        wrong.append((signs[-1] > found).any())
        alone.append((signs[:-1] > found).any(axis=1).mean())
    assert np.mean(wrong) <= rate + 0.03
    # were each of the twelve given its part of the rate, less than half of this would be used
    assert np.mean(alone) > rate / 2
    assert usual(np.array([[1.0, 0, 5], [2, 0, 5], [0, 0, 5]]), rate).tolist() == [2, 0, 5]


def test_what_is_called_is_stranger_than_all_but_the_stated_share():
    none = np.empty(0)
    part = Fold(None, np.arange(1.0, 20), none, none)
    sensors = Sensors((part,)).at(0.05)  # the strangest of twenty, itself among them
    assert sensors.rate == 0.05
    assert sensors.called([np.array([19, 19.5])]).tolist() == [False, True]
    assert sensors.at(0.1).called([np.array([18, 18.5])]).tolist() == [False, True]
    two = Sensors((part, replace(part, strangest=np.array([30.0])))).at(0.05)
    assert two.called([np.array([19.5, 19.5]), np.array([29, 31])]).tolist() == [False, True]


@pytest.mark.parametrize("episodes", [12, 25])
def test_of_few_episodes_no_more_is_promised_than_is_kept(episodes):
    """Each of twelve signs is exceeded by one new episode in 13 or 26: any, by far more."""
    promised, called, again = [], [], []
    for seed in range(16):
        sensors = fit_sensors(resting(episodes, seed), rate=0.05)
        promised.append(sensors.rate)
        new = resting(8, 1000 + seed).states.reshape(8, -1, 6)
        strange = [sensors.strange(one) for one in new]
        called += [sensors.called(one).any() for one in strange]
        again += [sensors.at(0.3).called(one).any() for one in strange]
    assert set(promised) == {max(0.05, 1 / (episodes + 1))}
    assert np.mean(called) <= promised[0] + 0.03
    assert 0.1 < np.mean(again) <= 0.35  # it is not that nothing is ever called


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_new_episodes_are_called_stuck_as_rarely_as_stated(rate):
    sensors = fit_sensors(slow(1000, 0), rate=rate)
    assert sensors.rate == rate
    (part,) = sensors.parts  # of so many a half is enough
    assert np.isfinite(part.habits.still).tolist() == [True, True, True, False]
    assert part.habits.still[:2].tolist() == [1, 1]
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
    usually = int(sensors.parts[0].habits.still[column])
    assert found[3 + 2 * usually :, column].all()
    assert not np.delete(found, column, axis=1).any()


def test_a_door_that_should_have_opened_is_caught_though_doors_rest():
    sensors = fit_sensors(doors(100, 0))
    (habits, *_) = (part.habits for part in sensors.parts)
    assert np.isinf(habits.still_at_end[DOOR])  # it stands still for whole episodes
    new = doors(60, 1).states.reshape(60, STEPS, 3)
    assert np.mean([sensors(one).any() for one in new]) <= sensors.rate + 0.03
    caught, differ, resting = 0, 0, []
    for one in new:
        stuck = one.copy()
        stuck[:, DOOR] = 0
        found = sensors(stuck)[:, DOOR]
        wrong = one[:, DOOR] > 2 * NOISE * habits.spread[DOOR]
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
    movement = fit_movement(states, [STEPS] * 30)
    still = runs(states[rows])
    assert movement.missed(states[rows], still).max() == 0
    assert movement.missed(states[rows], still, np.full(STEPS, opened)).max() > 0.5


def test_a_number_that_is_cut_off_stands_still_at_the_end_of_its_scale_alone():
    states = np.clip(2 * walks(60, 0).states.reshape(60, LENGTH, 4) / [1e5, 0.2, 1, 50], -1, 1)
    states = states.astype(np.float32)
    habits = fit_habits(list(states))
    assert habits.ends.tolist() == [[-1] * 4, [1] * 4]
    assert habits.still.max() == 1
    assert habits.still_at_end.min() > 5
    one = states[0].copy()
    one[10:, 0] = 0.5
    assert habits.strange(courses([one]))[13:, 0].min() > 1.4
    one[10:, 0] = 1.0
    assert habits.strange(courses([one]))[:15, 0].max() <= 1
    # an end that a single episode reaches is none: resting beyond it is not strange for that
    states[0] *= 1.5
    assert np.isnan(fit_habits(list(states)).ends).any()


def test_a_sensor_that_leaps_and_stays_there_is_caught_at_once():
    sensors = fit_sensors(doors(100, 0))
    one = doors(1, 5).states.copy()
    one[5:, DOOR] = 0.5  # half open before anything happened; so long it may rest
    found = sensors(one)[:, DOOR]
    assert found[6 : 6 + SPAN - 2].all()
    assert not found[:6].any()


def test_what_is_kept_of_the_log_is_what_is_compared():
    sensors = fit_sensors(resting(25, 0))
    rows = np.concatenate([part.rows for part in sensors.parts])
    assert sorted(rows) == list(range(25 * 25))
    (half,) = fit_sensors(slow(MANY, 0)).parts
    assert len(half.strangest) == MANY / 2


def test_few_episodes_promise_less_and_say_so():
    sensors = fit_sensors(slow(9, 0), rate=0.05)
    assert sensors.rate == 1 / 10
    with pytest.raises(UserError, match="a single episode"):
        fit_sensors(slow(1, 0))
    with pytest.raises(UserError, match=r"must have shape \(T, 4\)"):
        sensors(np.zeros((3, 5)))
    with pytest.raises(UserError, match="not finite"):
        sensors(np.full((3, 4), np.nan))
    with pytest.raises(UserError, match="between 0 and 1"):
        fit_sensors(slow(9, 0), rate=0)
