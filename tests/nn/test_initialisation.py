"""How networks start, against the definitions in the authors' code; numbers are theirs, not ours.

A uniform distribution over [−b, b] has the standard deviation b/√3, and of many draws the largest
is just under b; an orthogonal matrix times g has singular values of g.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest

from icql.algos.base import Spec
from icql.algos.presets import resolve_preset
from icql.algos.registry import make_algorithm
from icql.nn.critics import global_critics
from icql.nn.policies import DeterministicPolicy, TanhGaussianPolicy
from icql.nn.transformer import DecisionTransformer
from icql.settings.change import override
from icql.settings.shared import PolicySettings

OBS, ACT, WIDTH = 20, 9, 200


def is_uniform(x: Any, bound: float) -> None:
    """Uniform in [−bound, bound], as far as so many draws can tell."""
    x = np.asarray(x, np.float64).ravel()
    assert np.abs(x).max() <= bound * (1 + 1e-6)
    # a standard error of the standard deviation, twice over; and the largest draw
    assert x.std() == pytest.approx(bound / math.sqrt(3), rel=2 / math.sqrt(x.size) + 0.01)
    assert np.abs(x).max() > bound * (1 - 10 / x.size)
    assert abs(x.mean()) < 4 * bound / math.sqrt(3 * x.size)


def is_orthogonal(x: Any, gain: float) -> None:
    values = np.linalg.svd(np.asarray(x, np.float64), compute_uv=False)
    np.testing.assert_allclose(values, gain, rtol=1e-4)


def layers(net: Any) -> tuple[list[Any], Any]:
    *hidden, last = net.layers
    return hidden, last


def policy(scheme: str) -> Any:
    settings = PolicySettings(hidden=(WIDTH, WIDTH), init=scheme)  # type: ignore[arg-type]
    return layers(DeterministicPolicy(OBS, ACT, settings, key=jax.random.key(1)).net)


def critic(scheme: Any) -> Any:
    critics = global_critics(OBS + ACT, (WIDTH, WIDTH), 1, init=scheme, key=jax.random.key(2))
    return layers(jax.tree.map(lambda x: x[0], critics.members.net))


def test_iqls_critics_are_orthogonal_by_root_two_to_the_end() -> None:
    """implicit_q_learning, common.py: default_init(scale = sqrt(2)) for every Dense."""
    hidden, last = critic("iql")
    for layer in (*hidden, last):
        is_orthogonal(layer.weight, 2**0.5)
        assert not np.any(layer.bias)
    is_orthogonal(critic("orthogonal")[1].weight, 1.0)  # this package's own


@pytest.mark.parametrize("make", [policy, critic])
def test_pytorchs_layers_are_uniform_by_their_inputs(make: Any) -> None:
    """torch.nn.Linear: weights and biases U(±1/√inputs); TD3+BC and DMG have nothing else."""
    hidden, last = make("torch")
    inputs = OBS if make is policy else OBS + ACT
    for layer, n in zip((*hidden, last), (inputs, WIDTH, WIDTH), strict=True):
        is_uniform(layer.weight, 1 / math.sqrt(n))
        assert np.abs(layer.bias).max() <= 1 / math.sqrt(n)
        assert np.any(layer.bias)
    is_uniform(hidden[1].bias, 1 / math.sqrt(WIDTH))


@pytest.mark.parametrize(("make", "bound"), [(policy, 1e-3), (critic, 3e-3)])
def test_rebracs_layers(make: Any, bound: float) -> None:
    """ReBRAC, networks.py: PyTorch's weights, biases of 0.1, small uniform heads."""
    hidden, last = make("rebrac")
    inputs = OBS if make is policy else OBS + ACT
    for layer, n in zip(hidden, (inputs, WIDTH), strict=True):
        is_uniform(layer.weight, 1 / math.sqrt(n))
        np.testing.assert_allclose(layer.bias, 0.1, rtol=1e-6)
    is_uniform(last.weight, bound)
    assert 0 < np.abs(last.bias).max() <= bound


def test_cqls_policy_and_critics() -> None:
    """CORL, cql.py: PyTorch's hidden layers and a Xavier head of 0.01; critics orthogonal."""
    settings = PolicySettings(hidden=(WIDTH, WIDTH), init="cql")
    net = TanhGaussianPolicy(OBS, ACT, settings, key=jax.random.key(1)).net
    hidden, last = layers(net)
    is_uniform(hidden[1].weight, 1 / math.sqrt(WIDTH))
    is_uniform(last.weight, 0.01 * math.sqrt(6 / (WIDTH + 2 * ACT)))
    assert not np.any(last.bias)
    hidden, last = critic("cql")
    is_orthogonal(hidden[1].weight, 2**0.5)
    is_orthogonal(last.weight, 0.01)


@pytest.mark.parametrize("make", [policy, critic])
def test_flows_and_their_critics_are_xavier(make: Any) -> None:
    """fql, networks.py: variance_scaling(1, fan_avg, uniform), whose bound is √(3 / fan_avg)."""
    hidden, last = make("xavier")
    inputs, outputs = (OBS, ACT) if make is policy else (OBS + ACT, 1)
    sizes = [(inputs, WIDTH), (WIDTH, WIDTH), (WIDTH, outputs)]
    for layer, (n, m) in zip((*hidden, last), sizes, strict=True):
        is_uniform(layer.weight, math.sqrt(3 / ((n + m) / 2)))
        assert not np.any(layer.bias)


def test_dt_starts_as_gpt2_with_pytorchs_embeddings() -> None:
    """decision-transformer: GPT-2's N(0, 0.02²) in blocks, nn.Embedding's N(0, 1), nn.Linear."""
    sizes = {"width": 64, "layers": 2, "heads": 1, "timesteps": 300, "rate": 0.0}
    net = DecisionTransformer(OBS, ACT, **sizes, key=jax.random.key(0))  # type: ignore[arg-type]
    time = np.asarray(net.embed_timestep)
    assert (time.std(), time.mean()) == pytest.approx((1.0, 0.0), abs=0.03)
    assert np.abs(time).max() > 3  # of 19,200 normal numbers
    for block in net.blocks:
        attention, forward = block.attention, block.forward.layers
        for layer in (attention.query, attention.key_value, attention.out, *forward):
            weight = np.asarray(layer.weight)
            assert weight.std() == pytest.approx(0.02, rel=0.05)
            assert np.abs(weight).max() > 0.06
            assert not np.any(layer.bias)
    is_uniform(net.embed_state.weight, 1 / math.sqrt(OBS))
    is_uniform(net.embed_action.weight, 1 / math.sqrt(ACT))
    is_uniform(net.head.weight, 1 / math.sqrt(64))
    assert np.abs(net.embed_to_go.bias).max() > 0.5  # one input: U(±1)


# what a fresh network of each algorithm is, by its preset: kind of the policy and of the critics
PAPER = {
    "icql": ("orthogonal", "iql"),
    "icql-graph": ("orthogonal", None),
    "icql-rank": ("orthogonal", "orthogonal"),
    "iql": ("orthogonal", "iql"),
    "bc": ("torch", None),
    "icql-td3bc": ("torch", "torch"),
    "td3bc": ("torch", "torch"),
    "cql": ("cql", "cql"),
    "rebrac": ("rebrac", "rebrac"),
    "dmg": ("torch", "torch"),
    "fql": ("xavier", "xavier"),
    "qc": ("xavier", "xavier"),
}


@pytest.mark.parametrize("algo", PAPER)
def test_every_algorithm_has_its_own_scheme_and_robust_one_for_all_policies(algo: str) -> None:
    for preset in ("paper", "quick", "robust"):
        settings = resolve_preset(algo, preset, "hopper-medium-v2").settings
        critics = settings.init if hasattr(settings, "init") else None
        expected = "orthogonal" if preset == "robust" else PAPER[algo][0]
        assert (settings.policy.init, critics) == (expected, PAPER[algo][1])


@pytest.mark.parametrize(
    ("algo", "policy_bound", "critic_bound"),
    [("rebrac", 1e-3, 3e-3), ("td3bc", 16**-0.5, 16**-0.5), ("dmg", 16**-0.5, 16**-0.5)],
)
def test_the_scheme_reaches_what_is_trained(
    algo: str, policy_bound: float, critic_bound: float
) -> None:
    settings = resolve_preset(algo, "paper", None).settings
    small = override(settings, {"hidden": (16, 16), "policy.hidden": (16, 16)})
    state = make_algorithm(algo, small, Spec(OBS, ACT, 10)).init(jax.random.key(0))
    last = state.pi.model.net.layers[-1].weight
    assert 0.8 * policy_bound < np.abs(last).max() <= policy_bound
    last = state.q.model.members.net.layers[-1].weight
    assert last.shape == (2, 16, 1)
    assert 0.8 * critic_bound < np.abs(last).max() <= critic_bound
    if algo == "dmg":
        assert 0.8 * critic_bound < np.abs(state.v.model.members.net.layers[-1].weight).max()


def test_what_learns_by_rank_stays_orthogonal() -> None:
    """It shares ReBRAC's code, not its start."""
    settings = resolve_preset("icql-rank", "paper", None).settings
    small = override(settings, {"hidden": (16, 16), "policy.hidden": (16, 16)})
    state = make_algorithm("icql-rank", small, Spec(OBS, ACT, 10)).init(jax.random.key(0))
    is_orthogonal(state.pi.model.net.layers[-1].weight, 2**0.5)
    is_orthogonal(state.q.model.members.net.layers[1].weight[0], 2**0.5)
