"""Policies: one network definition for all kinds; noise on observations, in training alone."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icql.errors import UserError
from icql.nn.flow import Flow, OneStepPolicy
from icql.nn.policies import DeterministicPolicy, GaussianPolicy, TanhGaussianPolicy
from icql.settings.shared import ActorSettings, PolicySettings

OBS, ACT = 3, 2
NOISE = (0.5, 0.0, 1.0)
S = jax.random.normal(jax.random.key(0), (6, OBS))
A = jnp.tanh(jax.random.normal(jax.random.key(1), (6, ACT)))
T = jnp.full((6, 1), 0.25)
KEY = jax.random.key(2)
KINDS = (DeterministicPolicy, GaussianPolicy, TanhGaussianPolicy, OneStepPolicy, Flow)
kinds = pytest.mark.parametrize("kind", KINDS)


def make(kind: Any, noise: tuple[float, ...] = (), **settings: Any) -> Any:
    more = {"steps": 4} if kind is Flow else {}
    chosen = PolicySettings(**{"hidden": (8, 8), **settings})
    return kind(OBS, ACT, chosen, noise, key=jax.random.key(3), **more)


def trained(policy: Any, key: Any) -> Any:
    """What an update asks of each kind of policy, in training or, without a key, at rest."""
    match policy:
        case GaussianPolicy():
            return policy.log_prob(S, A, key=key)
        case TanhGaussianPolicy():
            return policy.sample(S, key=KEY, training=key is not None)[0]
        case OneStepPolicy():
            return policy.raw(S, A, key=key)
        case Flow():
            return policy.velocity(S, A, T, key=key)
    return policy(S, key=key)


def acted(policy: Any) -> Any:
    return policy.act(S, A) if isinstance(policy, Flow) else policy(S)


@kinds
def test_settings_reach_the_network(kind: Any) -> None:
    net = make(kind, hidden=(7, 5), layer_norm=True, dropout=0.25).net
    assert [layer.weight.shape[1] for layer in net.layers[:-1]] == [7, 5]
    assert [norm.scale.shape for norm in net.norms] == [(7,), (5,)]
    assert (net.dropout, net.noise) == (0.25, ())
    assert make(kind).net.norms == ()


@kinds
def test_noise_acts_in_training_and_never_in_acting(kind: Any) -> None:
    plain, shaken = make(kind), make(kind, NOISE)
    np.testing.assert_array_equal(acted(plain), acted(shaken))
    np.testing.assert_array_equal(trained(plain, None), trained(shaken, None))
    np.testing.assert_array_equal(trained(plain, KEY), trained(plain, None))
    assert np.abs(trained(shaken, KEY) - trained(plain, KEY)).max() > 1e-3


@pytest.mark.parametrize("kind", [Flow, OneStepPolicy])
def test_of_a_flow_only_the_observation_is_shaken(kind: Any) -> None:
    """Its other inputs, noise and time, are part of what is learned."""
    policy = make(kind, NOISE, hidden=())
    rows = OBS + ACT + (kind is Flow)
    assert policy.net.noise == (*NOISE, *[0.0] * (rows - OBS))

    def deaf(kept: slice) -> Any:
        """The policy with weights for these inputs alone."""
        weight = jnp.zeros((rows, ACT)).at[kept].set(policy.net.layers[0].weight[kept])
        return eqx.tree_at(lambda p: p.net.layers[0].weight, policy, weight)

    beyond = deaf(slice(OBS, None))
    np.testing.assert_array_equal(trained(beyond, KEY), trained(beyond, None))
    unshaken = deaf(slice(1, 2))  # the one whose noise is 0
    np.testing.assert_array_equal(trained(unshaken, KEY), trained(unshaken, None))
    shaken = deaf(slice(0, OBS))
    assert np.abs(trained(shaken, KEY) - trained(shaken, None)).max() > 1e-3


def test_no_noise_at_all_is_no_branch() -> None:
    assert make(DeterministicPolicy, (0.0, 0.0, 0.0)).net.noise == ()


@kinds
def test_several_networks_act_by_their_mean(kind: Any) -> None:
    several = make(kind, networks=3)
    apart = [eqx.tree_at(lambda p: p.net, several, one) for one in several.net.split()]
    inputs = jax.random.normal(KEY, (6, apart[0].net.layers[0].weight.shape[0]))
    said = np.stack([one.net(inputs) for one in apart])
    assert said.std(0).min() > 1e-4  # no two began alike
    np.testing.assert_allclose(several.net(inputs), said.mean(0), rtol=1e-5, atol=1e-6)


@kinds
def test_in_training_each_row_is_one_networks(kind: Any) -> None:
    """Network i answers, and learns from, every row that is i modulo their number."""
    several = make(kind, networks=3)
    apart = [eqx.tree_at(lambda p: p.net, several, one) for one in several.net.split()]
    expected = np.stack([trained(one, None) for one in apart])[np.arange(6) % 3, np.arange(6)]
    np.testing.assert_allclose(trained(several, KEY), expected, rtol=1e-4, atol=1e-5)

    def second(policy: Any) -> Any:  # what rows 1 and 4 say
        return trained(policy, KEY)[1::3].sum()

    slopes = eqx.filter_grad(second)(several).net.nets.layers[0].weight
    assert [bool(np.any(x)) for x in slopes] == [False, True, False]


def test_networks_drop_out_apart() -> None:
    """One mask for all would make them err alike."""
    several = make(DeterministicPolicy, networks=2, dropout=0.5, hidden=(64,))
    first = several.net.split()[0]
    alike = eqx.tree_at(
        lambda p: p.net.nets, several, jax.tree.map(lambda x: jnp.stack([x, x]), first)
    )
    same = jnp.repeat(S[:1], 2, 0)  # one row for each of the two, which are now the same
    said = alike(same, key=KEY)
    assert np.abs(said[0] - said[1]).max() > 1e-4


def test_networks_have_equal_shares_of_a_batch() -> None:
    ActorSettings(batch_size=12, policy=PolicySettings(networks=4))
    with pytest.raises(UserError, match="must divide the batch of 12"):
        ActorSettings(batch_size=12, policy=PolicySettings(networks=5))
