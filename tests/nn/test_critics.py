"""Critics: an ensemble behind one face, global or local."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icql.algos.base import Transition
from icql.nn.critics import global_critics, local_critics
from icql.settings.shared import LocalSettings


@pytest.mark.parametrize("kind", ["local", "global"])
def test_critics_are_independent_and_act_on_any_leading_axes(kind):
    if kind == "global":
        critics = global_critics(5, (8,), 2, key=jax.random.key(0))
    else:
        local = {"local": LocalSettings(layers=2, features=4), "context": 5, "discount": 0.9}
        critics = local_critics(3, 2, (8,), 2, **local, key=jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 6)
    normal = jax.random.normal
    context = Transition(
        normal(keys[0], (7, 5, 3)),
        normal(keys[1], (7, 5, 2)),
        normal(keys[2], (7, 5)),
        normal(keys[3], (7, 5, 3)),
        normal(keys[4], (7, 5, 2)),
        jnp.ones((7, 5)),
    )
    at = critics.at(normal(keys[5], (7, 3)), context)
    one = at(jnp.full((7, 2), 0.5))
    assert one.shape == (2, 7)
    assert not np.allclose(one[0], one[1])
    several = at(jnp.stack([jnp.full((7, 2), 0.5), jnp.zeros((7, 2))]))
    assert several.shape == (2, 2, 7)
    np.testing.assert_allclose(several[:, 0], one, rtol=1e-5, atol=1e-6)
