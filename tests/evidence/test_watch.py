"""The alarm of an episode so far rings as rarely as it says; at stuck sensors often."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evidence.test_alarm import LENGTH, walks
from evidence.test_notebook import shown
from evidence.test_sensors import slow
from icql.errors import UserError
from icql.evidence.alarm import Alarm, fit_alarm
from icql.evidence.watch import SharedLimits, Watched

WIDTH = 4


@pytest.fixture(scope="module")
def alarms() -> dict[float, Alarm]:
    log = slow(400, 0)
    return {rate: fit_alarm(log, rate=rate) for rate in (0.05, 0.1)}


@pytest.fixture(scope="module")
def new() -> np.ndarray:
    return slow(400, 1).states.reshape(400, LENGTH, WIDTH)


@pytest.mark.parametrize("rate", [0.05, 0.1])
def test_both_signs_together_ring_as_rarely_as_stated(alarms, new, rate):
    found = [alarms[rate].watch(one) for one in new]
    rang = np.mean([one.rings for one in found])
    assert abs(rang - rate) < 0.015
    # each alone has a part of it
    far = np.mean([one.far for one in found])
    assert 0.2 * rate < far < rang


def test_a_stuck_sensor_is_seen_where_single_states_say_little(alarms, new):
    seen, single = [], []
    for one in new[:60]:
        stuck = one.copy()
        stuck[5:, 0] = stuck[5, 0]
        found = alarms[0.05].watch(stuck)
        assert found.stuck[8:, 0].all()
        seen.append(found.rings[5:])
        single.append(alarms[0.05](stuck).rings[5:])
    assert np.mean(seen) > 0.9
    assert np.mean(single) < 0.7


def test_another_plant_is_far(alarms, new):
    found = alarms[0.05].watch(100 * new[0])
    assert found.far.all()
    assert found.rings.all()


def test_what_holds_for_the_worst_log():
    """Episodes that lie wholly apart: a new one rings throughout where it is the farthest."""
    rng, rang = np.random.default_rng(0), []
    for seed in range(100):
        log = walks(10, seed)
        apart = log.states.std() * np.float32(rng.exponential(size=(11, 1)) ** 3 * 1e3)
        log = replace(log, states=log.states + np.repeat(apart[:10], LENGTH, axis=0))
        alarm = fit_alarm(log, rate=0.01)
        rang.append(alarm(walks(1, 500 + seed).states + apart[10]).rings.mean())
    assert alarm.worst == pytest.approx(0.01 + 1 / 11)
    assert 0.03 < np.mean(rang) < alarm.worst + 0.03  # more than the rate, no more than this
    assert fit_alarm(walks(300, 0)).worst < 0.054


def test_bad_states_are_refused(alarms):
    with pytest.raises(UserError, match=r"must have shape"):
        alarms[0.05].watch(np.zeros((4, 2)))
    with pytest.raises(UserError, match="not finite"):
        alarms[0.05].watch(np.full((4, WIDTH), np.nan))


def test_in_a_notebook():
    stuck = np.zeros((8, 3), bool)
    stuck[5:, 2] = True
    text = Watched(np.arange(8) == 1, stuck)._repr_html_()
    assert shown(text).cells == ["stuck sensor", "first at", "states", "2", "5", "3"]
    assert "rings at 4" in text
    assert "silent" in Watched(np.zeros(8, bool), np.zeros((8, 3), bool))._repr_html_()


def test_of_few_episodes_bundles_are_reckoned_with():
    """Episodes ring as a whole or not at all: of 12, a new one does more often than they did."""
    rng, rang = np.random.default_rng(1), []
    for seed in range(50):
        log, new = walks(12, seed), walks(8, 500 + seed).states
        apart = log.states.std() * np.float32(rng.exponential(size=(20, 1)) ** 3 * 1e3)
        log = replace(log, states=log.states + np.repeat(apart[:12], LENGTH, axis=0))
        alarm = fit_alarm(log, rate=0.1)
        new = (new + np.repeat(apart[12:], LENGTH, axis=0)).reshape(8, LENGTH, WIDTH)
        rang.append(np.mean([alarm.watch(one).rings for one in new]))
    assert abs(np.mean(rang) - 0.1) < 0.04


def test_a_new_state_is_compared_by_one_parts_habits_as_logged_ones_are():
    """By any of five it had five chances to be strange, by their median less than one."""
    alarm = fit_alarm(walks(12, 0), rate=0.1)
    stuck = walks(1, 500).states.copy()
    stuck[5:, 0] = stuck[5, 0]
    strange = np.array(alarm.sensors.strange(stuck))
    middle = np.median(strange, axis=0)
    apart = np.unravel_index(np.abs(strange[0] - middle).argmax(), middle.shape)
    between = (strange[0][apart] + middle[apart]) / 2
    assert strange[0][apart] != middle[apart]
    alarm.__dict__["shared"] = SharedLimits(distance=np.inf, strange=between)
    np.testing.assert_array_equal(alarm.watch(stuck).stuck, strange[0] > between)
