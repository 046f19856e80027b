"""How near actions are to logged ones."""

from __future__ import annotations

import numpy as np
import pytest

import chain
from icql.judging.log import Log
from icql.judging.support import Surroundings, explained


def test_far_is_what_nobody_did():
    log = Log.of(chain.log(episodes=60))
    around = Surroundings.of(log, 0)
    rows = len(around.rows)
    assert around.far(np.full((rows, 1), 0.2)) < 0.05
    assert around.far(np.full((rows, 1), 9.0)) == 1.0
    assert around.far_logged < 0.2  # about 1 in 17


def test_it_is_the_inequality_of_the_page():
    log = Log.of(chain.log(episodes=30))
    around = Surroundings.of(log, 0)
    actions = np.random.default_rng(0).uniform(-2, 2, (len(around.rows), 1))
    far = 0
    for place, near in enumerate(around.near):
        logged = log.data.actions[near, 0].astype(np.float64)
        nearest = np.abs(logged - actions[place, 0]).min()
        each = [np.abs(np.delete(logged, j) - a).min() for j, a in enumerate(logged)]
        far += nearest > max(each)
    assert around.far(actions) == pytest.approx(far / len(around.rows))


def test_one_episode_has_no_surroundings():
    assert Surroundings.of(Log.of(chain.log(episodes=1)), 0) is None


def test_explained_variance():
    values = np.array([1.0, 2.0, 3.0])
    assert explained(np.zeros(3), values) == 1.0
    assert explained(values - 2.0, values) == pytest.approx(0.0)
    assert explained(np.ones(3), np.ones(3)) == 0.0
