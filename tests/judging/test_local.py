"""The policy's value on the retrieval graph, against the same equations solved by NumPy."""

from __future__ import annotations

import numpy as np

import chain
from icql.judging.local import Graph
from icql.judging.log import Log


def test_it_solves_its_equation():
    log = Log.of(chain.log(episodes=20))
    data, n = log.data, len(log.data)
    graph = Graph.of(log, chain.GAMMA, None, lambda label, share: None)
    rng = np.random.default_rng(0)
    there, starts = (rng.uniform(-1, 1, (m, 1)).astype(np.float32) for m in (n, len(log)))
    matrix = np.eye(n)
    for i in range(n):
        rows = graph.there[i]
        away = np.square(data.actions[np.maximum(rows, 0), 0] - there[i, 0])
        weights = np.where(rows >= 0, np.exp(-away / (2 * away[rows >= 0].mean())), 0)
        for j, weight in zip(rows, weights / weights.sum(), strict=True):
            matrix[i, j] -= chain.GAMMA * data.mask[i] * weight
    q = np.linalg.solve(matrix, data.rewards.astype(np.float64))
    rows, near = graph.critic.influences(data.states[log.first], starts)
    expected = (near * q[rows]).sum(1)
    np.testing.assert_allclose(graph.start_values(there, starts), expected, atol=0.02)


def test_rows_around_the_next_state_are_those_of_other_episodes():
    log = Log.of(chain.log(episodes=20))
    graph = Graph.of(log, chain.GAMMA, None, lambda label, share: None)
    own = log.data.episode[:, None]
    assert (log.data.episode[graph.there[:, 1:]] != own).all()
    follows = graph.there[:, 0]
    np.testing.assert_array_equal(follows < 0, log.broken)
    np.testing.assert_array_equal(follows[~log.broken], np.flatnonzero(~log.broken) + 1)


def test_a_single_episode_has_no_graph():
    log = Log.of(chain.log(episodes=1, mean=-0.5))
    assert Graph.of(log, chain.GAMMA, None, lambda label, share: None) is None
