"""The alarm of an episode so far rings as rarely as it says; at stuck sensors often."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evidence.test_alarm import LENGTH, walks
from evidence.test_notebook import shown
from evidence.test_sensors import slow
from icql.errors import UserError
from icql.evidence.alarm import Alarm, fit_alarm
from icql.evidence.sensors import Fold, Sensors
from icql.evidence.watch import Watched, shared_limits

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


@pytest.mark.parametrize(
    ("parts", "rings"), [(0, False), (1, False), (2, False), (3, True), (5, True)]
)
def test_a_state_is_strange_by_the_habits_of_most_parts(parts, rings):
    """Of logged states nearly all are not strange at all; a new one has five chances to be."""
    habits: Any = None
    strange = np.zeros((5, 20))
    strange[0, 7] = 1.0
    folds = tuple(
        Fold(habits, np.ones(4), np.arange(20 * i, 20 * i + 20), one, np.sort(one))
        for i, one in enumerate(strange)
    )
    sensors, episode = Sensors(folds), np.repeat(np.arange(20), 5)
    limits = shared_limits(np.arange(100), np.linspace(0, 1, 100), episode, sensors, 0.1)
    new = [np.array([[2.0 * (i < parts)]]) for i in range(5)]
    assert limits.stuck(sensors, new).item() == rings
