"""How actions differ where states are alike, against loops over all pairs of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from graph.test_logged import make, some
from icql.data.transitions import Transitions
from icql.graph.deviations import (
    LEAST,
    Around,
    action_spread,
    deviation_sizes,
    deviations_last,
)
from retrieval.cases import distance_matrix


def nearest(data: Transitions, k: int) -> NDArray[np.intp]:
    away = distance_matrix(data.states, data.states, "l2")
    away[data.episode[:, None] == data.episode[None]] = np.inf
    return np.argsort(away, 1, kind="stable")[:, :k]


def test_spread_of_actions_by_hand() -> None:
    data = make()
    near = nearest(data, 5)
    a = data.actions.astype(float)
    apart = np.mean([((a[i] - a[j]) ** 2).sum() for i in range(len(data)) for j in near[i]])
    anywhere = np.mean([((x - y) ** 2).sum() for x in a for y in a])
    assert action_spread(Around(data, 5)) == pytest.approx(apart / anywhere)


def test_deviations_by_hand() -> None:
    """Of rows that have a next step; a gap in the steps is none."""
    data = some(make(), ~np.isin(np.arange(35), [3, 11, 12, 16]))
    near = nearest(data, 5)
    a = data.actions.astype(float)
    away = [a[i] - sum(a[j] for j in near[i]) / 5 for i in range(len(data))]
    pairs = [
        (away[i], away[i + 1])
        for i in range(len(data) - 1)
        if data.episode[i] == data.episode[i + 1] and data.step[i] + 1 == data.step[i + 1]
    ]
    assert 15 < len(pairs) < len(data) - len(set(data.episode))
    products = [sum(float(x @ y) for x, y in each) for each in (
        pairs, [(x, x) for x, _ in pairs], [(y, y) for _, y in pairs]
    )]  # fmt: skip
    expected = products[0] / np.sqrt(products[1] * products[2])
    assert deviations_last(Around(data, 5)) == pytest.approx(expected)


def test_sizes_of_deviations_by_hand() -> None:
    data = make()
    near = nearest(data, 5)
    a = data.actions.astype(float)
    away = [a[i] - sum(a[j] for j in near[i]) / 5 for i in range(len(data))]
    assert deviation_sizes(Around(data, 5)) == pytest.approx(tuple(np.std(away, 0)))


def test_who_never_deviates_still_has_a_unit() -> None:
    data = make()
    constant = replace(data, actions=np.full_like(data.actions, 0.25))
    assert deviation_sizes(Around(constant)) == (LEAST,) * data.action_dim
    alone = make((30,))  # nobody to compare with
    assert deviation_sizes(Around(alone)) == pytest.approx(tuple(alone.actions.std(0)), rel=1e-5)


@pytest.mark.parametrize("measure", [action_spread, deviations_last])
def test_some_rows_are_drawn_by_the_seed(measure: Callable[..., float]) -> None:
    around = Around(make(), 5)
    assert measure(around, rows=20) == measure(around, rows=20)
    assert measure(around, rows=20) != measure(around, rows=20, seed=1)


def test_spread_is_nothing_where_the_state_decides_and_one_where_it_says_nothing() -> None:
    data = make((50,) * 8)
    decided = replace(data, actions=np.tanh(data.states[:, :2]))
    assert action_spread(Around(decided, 1)) < 0.2
    assert action_spread(Around(data)) == pytest.approx(1, abs=0.1)


def test_what_each_episode_does_in_its_own_way_lasts_and_noise_does_not() -> None:
    data = make((50,) * 8)
    rng = np.random.default_rng(0)
    ways = np.repeat(rng.normal(size=(8, 2)), 50, 0).astype(np.float32)
    common = np.tanh(data.states[:, :2])
    shown = replace(data, actions=common + ways)
    explored = replace(data, actions=common + rng.normal(size=(400, 2)).astype(np.float32))
    assert deviations_last(Around(shown)) > 0.8
    assert abs(deviations_last(Around(explored))) < 0.1


@pytest.mark.parametrize("measure", [action_spread, deviations_last])
@pytest.mark.parametrize("lengths", [(30,), (1,)])
def test_without_another_episode_there_is_nothing_to_compare(
    lengths: tuple[int, ...], measure: Callable[..., float]
) -> None:
    assert measure(Around(make(lengths))) == 1


def test_episodes_of_a_single_step_have_none_for_a_deviation_to_last_to() -> None:
    assert deviations_last(Around(make((1,) * 30))) == 1


@pytest.mark.parametrize("measure", [action_spread, deviations_last])
def test_constant_actions_do_not_differ(measure: Callable[..., float]) -> None:
    data = make()
    assert measure(Around(replace(data, actions=np.full_like(data.actions, 0.25)))) == 1
