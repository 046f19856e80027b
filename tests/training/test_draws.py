"""Alias tables: what they draw is what the weights say, exactly and as counted."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from icql.training.draws import Alias, alias_of, draw

ANY = st.one_of(st.just(0.0), st.floats(1e-12, 1e12))
FEW = st.integers(0, 3).map(float)  # sums of light and of heavy rows often meet
WEIGHTS = st.one_of(st.lists(kind, min_size=1, max_size=60) for kind in (ANY, FEW)).filter(any)


def probabilities(alias: Alias) -> NDArray[np.float64]:
    """Of every row: it is drawn and kept, or another one that stands for it is drawn."""
    keep, other = np.asarray(alias.keep, np.float64), np.asarray(alias.other)
    found = keep.copy()
    np.add.at(found, other, 1 - keep)
    return found / len(keep)


@settings(max_examples=300, deadline=None)
@given(weights=WEIGHTS)
@example(weights=[3.0])
@example(weights=[0.1, 0.1, 0.1])  # their mean is a little more than each of them
@example(weights=[1 / 3] * 10)
@example(weights=[1e12, *[1e-12] * 20])
@example(weights=[0.0, 0.0, 5.0, 0.0])
@example(weights=[1.0, 2.0, 3.0, 2.0, 1.0, 3.0])
@example(weights=[0.0, 0.0, 1.0, 0.0, 0.0, 1.0])  # the best third of the rows
def test_a_table_holds_the_very_probabilities(weights: list[float]) -> None:
    wanted = np.asarray(weights)
    alias = alias_of(wanted)
    keep, other = np.asarray(alias.keep), np.asarray(alias.other)
    assert ((keep >= 0) & (keep <= 1)).all()
    assert ((other >= 0) & (other < len(wanted))).all()
    found = probabilities(alias)
    np.testing.assert_allclose(found, wanted / wanted.sum(), rtol=0, atol=1e-7)  # float32's
    assert (found[wanted == 0] == 0).all()  # never, not seldom


@pytest.mark.parametrize("rows", [1, 3, 10, 100, 1000, 12_345])
@pytest.mark.parametrize("weight", [0.1, 1.0, 1 / 3, 1e-300])
def test_equal_weights_draw_all_rows_alike(rows: int, weight: float) -> None:
    found = probabilities(alias_of(np.full(rows, weight)))
    np.testing.assert_allclose(found * rows, 1, rtol=1e-6)


def test_many_rows_of_very_unequal_weight() -> None:
    weights = np.exp(3 * np.random.default_rng(0).normal(size=200_000))
    found = probabilities(alias_of(weights))
    np.testing.assert_allclose(found, weights / weights.sum(), rtol=1e-3, atol=1e-6 / len(weights))


def test_rows_come_as_often_as_their_weight_says() -> None:
    weights = np.array([0.0, 1.0, 2.0, 0.5, 6.5, 0.0])
    drawn = np.asarray(draw(jax.random.key(0), 100_000, 6, alias_of(weights)))
    assert drawn.dtype == np.int32
    counts = np.bincount(drawn, minlength=6)
    expected = 100_000 * weights / weights.sum()
    assert (counts[weights == 0] == 0).all()
    spread = np.sqrt(np.maximum(expected, 1))
    assert (np.abs(counts - expected) < 5 * spread).all(), counts


def test_without_weights_all_rows_are_alike() -> None:
    counts = np.bincount(np.asarray(draw(jax.random.key(1), 60_000, 6)), minlength=6)
    assert (np.abs(counts - 10_000) < 500).all(), counts


def test_leading_rows_know_no_weights() -> None:
    """The first `uniform` rows of a draw are the same whatever the weights; the rest are not."""
    weights, size, uniform = np.array([0.0, 0, 0, 0, 1]), 400, 250

    def drawn(weights: NDArray[np.float64], uniform: int) -> NDArray[np.int32]:
        return np.asarray(draw(jax.random.key(2), size, 5, alias_of(weights, uniform)))

    found = drawn(weights, uniform)
    np.testing.assert_array_equal(found[:uniform], drawn(np.ones(5), 0)[:uniform])
    np.testing.assert_array_equal(found[:uniform], drawn(weights[::-1], uniform)[:uniform])
    assert (np.bincount(found[:uniform]) > 25).all()
    assert (found[uniform:] == 4).all()
    assert (drawn(weights, 0) == 4).all()


def test_draws_follow_from_their_key() -> None:
    alias = alias_of(np.arange(1.0, 9))
    one, again, other = (
        np.asarray(jax.jit(lambda key: draw(key, 50, 8, alias))(jax.random.key(seed)))
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    side_by_side = jax.vmap(lambda key: draw(key, 50, 8, alias))(
        jnp.stack([jax.random.key(1), jax.random.key(0)])
    )
    np.testing.assert_array_equal(side_by_side, np.stack([other, one]))
