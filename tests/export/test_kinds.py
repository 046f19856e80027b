"""Every kind of policy and of space as ONNX nodes, without training any."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from icql.data.signals import Signals
from icql.data.transitions import DataInfo, Transitions
from icql.errors import UserError
from icql.evidence.alarm import Alarm, fit_alarm
from icql.export.agreement import Original, compare, probes, run
from icql.export.build import build_model
from icql.export.policy_nodes import check_exportable
from icql.nn.flow import OneStepPolicy
from icql.nn.policies import (
    CategoricalPolicy,
    DeterministicPolicy,
    GaussianPolicy,
    Standardised,
    TanhGaussianPolicy,
)
from icql.retrieval import learned
from icql.settings.shared import PolicySettings

OBS, ACT = 5, 3
NAMED = Signals(
    action=tuple(f"mode={level}" for level in "abc"), categories={"mode": ("a", "b", "c")}
)
BOUNDED = Signals(action_low=(0.0, -1e5, 3.0), action_high=(100.0, 1e5, 3.5))


def states(rows: int = 300, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, OBS)).astype(np.float32)


def made(kind: Any, *, limit: float | None = None, **policy: Any) -> Standardised:
    """A policy with numbers everywhere: no weight, bias or norm is as it begins."""
    settings = PolicySettings(hidden=(16, 16), **policy)
    keys = iter(jax.random.split(jax.random.key(0), 100))
    moved = jax.tree.map(
        lambda x: x + 0.3 * jax.random.normal(next(keys), x.shape) if eqx.is_array(x) else x,
        kind(OBS, ACT, settings, key=jax.random.key(1)),
    )
    mean, std = jnp.linspace(-1, 1, OBS), jnp.linspace(0.5, 2, OBS)
    return Standardised(moved, mean, std, limit)


def original_of(
    policy: Standardised, signals: Signals | None = None, alarm: Alarm | None = None
) -> Original:
    said = signals or Signals()

    def act(asked: np.ndarray) -> np.ndarray:
        found = np.asarray(policy(jnp.asarray(asked)))
        return found.argmax(-1) if said.choices else said.in_units(found)

    return Original(act, policy, said, alarm, ACT)


def said_by(original: Original, asked: np.ndarray) -> dict[str, np.ndarray]:
    blocks = list(run(build_model(original).SerializeToString(), asked))
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("kind", [GaussianPolicy, DeterministicPolicy, TanhGaussianPolicy])
def test_actions(kind, layer_norm):
    original = original_of(made(kind, layer_norm=layer_norm))
    said = said_by(original, states())["action"]
    assert said.shape == (300, ACT)
    assert said.std() > 0.1
    assert_allclose(said, original.act(states()), atol=2e-5)


def test_the_mean_of_several_networks():
    original = original_of(made(GaussianPolicy, networks=3))
    said = said_by(original, states())["action"]
    assert_allclose(said, original.act(states()), atol=2e-5)


def test_actions_in_units_and_states_that_are_clipped():
    original = original_of(made(GaussianPolicy, limit=2.0), BOUNDED)
    asked = np.concatenate([states(), 1e6 * states()])
    found = compare(build_model(original).SerializeToString(), original, asked)
    assert found["action_error"] <= 1e-5
    unclipped = said_by(original_of(made(GaussianPolicy), BOUNDED), asked)["action"]
    assert np.abs(unclipped - original.act(asked)).max() > 1


def test_choices():
    original = original_of(made(CategoricalPolicy), NAMED)
    asked = states()
    assert compare(build_model(original).SerializeToString(), original, asked) == {
        "states": 300,
        "choices_that_differ": 0,
    }
    asked[7, 2] = np.inf
    said = said_by(original, asked)["action"]
    assert said[7] == -1
    assert set(said.tolist()) >= {-1, 0, 1}


def test_choices_that_differ_are_found():
    content = build_model(original_of(made(CategoricalPolicy), NAMED)).SerializeToString()
    other = made(CategoricalPolicy)
    last = other.policy.net.layers[-1].bias
    other = eqx.tree_at(lambda p: p.policy.net.layers[-1].bias, other, last[::-1])
    with pytest.raises(UserError, match="of 300 choices"):
        compare(content, original_of(other, NAMED), states())


def test_policies_that_a_file_cannot_hold():
    with pytest.raises(UserError, match="draws noise"):
        check_exportable(made(OneStepPolicy))

    class Remembers(eqx.Module):
        def __call__(self, s: Any) -> Any: ...
        def start(self, rows: int) -> Any: ...
        def step(self, *seen: Any) -> Any: ...

    class Unknown(eqx.Module):
        def __call__(self, s: Any) -> Any: ...

    for inner, words in ((Remembers(), "remembers the episode"), (Unknown(), "kind Unknown")):
        with pytest.raises(UserError, match=words):
            check_exportable(Standardised(inner, jnp.zeros(OBS), jnp.ones(OBS)))


def log(rows: int = 400) -> Transitions:
    """Episodes whose columns differ in size and stand far from 0."""
    s = states(rows) * [1, 1e4, 1e-3, 10, 1] + [0, 1e5, 1, -300, 0]
    s[:, 4] = 7.0  # never moves
    s = s.astype(np.float32)
    none = np.zeros(rows, np.float32)
    actions = np.tanh(states(rows, 1))[:, :2]
    return Transitions(
        states=s,
        actions=actions,
        rewards=none,
        next_states=np.roll(s, -1, 0),
        next_actions=actions,
        mask=none,
        episode=(np.arange(rows) // 20).astype(np.int32),
        step=(np.arange(rows) % 20).astype(np.int32),
        info=DataInfo("walks"),
    )


@pytest.mark.parametrize("space", ["standardised", "learned"])
def test_distances_and_alarms(space, monkeypatch):
    monkeypatch.setattr(learned, "STEPS", 20)
    monkeypatch.setattr(learned, "CHUNK", 20)
    data = log()
    alarm = fit_alarm(data, rate=0.2, space=space, states=300)
    original = original_of(made(DeterministicPolicy), alarm=alarm)
    asked = np.concatenate([data.states[:100], data.states[:100] * 1.05, states(20)])
    said, expected = said_by(original, asked), alarm(asked)
    assert_allclose(said["distance"], expected.distance, rtol=1e-6, atol=1e-6)
    assert_array_equal(said["alarm"], expected.rings)
    assert 0.1 < said["alarm"].mean() < 0.9
    assert (said["distance"] == 0).sum() >= 50  # a kept state is exactly itself


def crowded() -> np.ndarray:
    """A hundred states that float32 cannot tell apart once they are centred, and others."""
    s = log().states.copy()
    s[:100] = s[0]
    s[:100, 1] += 64 * np.arange(100) * np.spacing(s[0, 1])
    s[100:, 1] *= 50
    return s


def broken_sensor() -> np.ndarray:
    """One state so far away that all others are all but the same beside it."""
    s = log().states.copy()
    s[250, 3] = 1e30
    return s


@pytest.mark.parametrize("make", [crowded, broken_sensor])
def test_distances_that_float32_cannot_tell_are_exact(make):
    data = dataclasses.replace(log(), states=make())
    alarm = fit_alarm(data, rate=0.2)
    original = original_of(made(DeterministicPolicy), alarm=alarm)
    asked = data.states[[*range(0, 100, 3), 120, 130, 250]]
    asked = np.concatenate([asked, asked + np.float32(0.5)])
    found = said_by(original, asked)["distance"]
    assert_allclose(found, alarm(asked).distance, rtol=1e-9, atol=1e-8)
    assert found[: len(asked) // 2].max() < 1e-8


@pytest.mark.parametrize("kept", [5, 16, 17])
def test_an_alarm_of_a_few_states(kept):
    alarm = fit_alarm(log(), rate=0.2, states=kept)
    original = original_of(made(DeterministicPolicy), alarm=alarm)
    asked = log().states[:30]
    assert_allclose(said_by(original, asked)["distance"], alarm(asked).distance, rtol=1e-9)


def test_probes_are_logged_states_and_states_near_them():
    logged = broken_sensor()
    asked = probes(logged)
    assert len(asked) == 10_000
    same = (asked[:, None, :3] == logged[None, :, :3]).all(-1).any(1)
    assert same.mean() == 0.5
    assert np.abs(asked[:, 3]).max() == np.float32(1e30)
    assert (np.abs(asked[:, 3]) < 1e4).mean() > 0.99  # one bad number moves no other


def test_a_distance_that_differs_is_found():
    data = log()
    alarm = fit_alarm(data, rate=0.2)
    content = build_model(original_of(made(DeterministicPolicy), alarm=alarm)).SerializeToString()
    other = fit_alarm(data, rate=0.2, states=200)
    with pytest.raises(UserError, match="in a distance"):
        compare(content, original_of(made(DeterministicPolicy), alarm=other), data.states)
