"""Corrective rows: the same next state by other means, and only where the log knows the means."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import icql
import pendulum
from icql.algos.base import Transition
from icql.data.signals import Signals
from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.training.corrective import corrective_of, effect_of

B = np.array(
    [[0.5, 0.0, 0.0], [0.0, -0.2, 0.0]]
)  # Bᵀ: two actions, of three columns they drive two


def logged(rows: int = 400, actions: int = 2, seed: int = 0) -> Transitions:
    """s' = s + 0.1 + B a in the columns that are driven; the last goes its own way."""
    random = np.random.default_rng(seed)
    s = random.normal(size=(rows, 3)).astype(np.float32)
    a = random.uniform(-1, 1, (rows, actions)).astype(np.float32)
    own = np.zeros((rows, 3))
    own[:, 2] = random.normal(size=rows)
    s_next = (s + 0.1 + a[:, :2] @ B + own).astype(np.float32)
    base = icql.load_dataset("hopper-mini")
    return dataclasses.replace(
        base,
        states=s,
        actions=a,
        rewards=np.zeros(rows, np.float32),
        next_states=s_next,
        next_actions=a,
        mask=np.ones(rows, np.float32),
        episode=np.arange(rows, dtype=np.int32) // 50,
        step=np.arange(rows, dtype=np.int32) % 50,
    )


def on_device(data: Transitions) -> Transition:
    columns: Any = (data.states, data.actions, data.rewards, data.next_states, data.next_actions)
    return Transition(*(jnp.asarray(x) for x in (*columns, data.mask)))


def test_the_effect_is_that_of_least_squares() -> None:
    data = logged(actions=3)
    design = np.column_stack([data.actions, np.ones(len(data))]).astype(float)
    change = data.next_states.astype(float) - data.states
    wanted, *_ = np.linalg.lstsq(design, change, rcond=None)
    found = effect_of(data)
    np.testing.assert_allclose(found.matrix, wanted[:-1], atol=1e-9)
    assert found.columns.tolist() == [True, True, False]  # the last column has its own way
    assert found.actions.tolist() == [True, True, False]  # the third action does nothing


def test_shifted_rows_reach_the_same_next_state() -> None:
    data = logged()
    rows, spread = on_device(data), np.array([2.0, 0.5, 1.0])
    scaled = dataclasses.replace(rows, s=rows.s / spread)
    moved = corrective_of(effect_of(data), 0.3, spread)(scaled, jax.random.key(0))
    shift = np.asarray(moved.a - rows.a)
    assert np.abs(shift).max() <= 0.3 + 1e-6
    assert np.abs(shift).mean() > 0.1
    assert np.abs(np.asarray(moved.a)).max() <= 1  # where the box ends, so does the shift
    there = np.asarray(moved.s) * spread + 0.1 + np.asarray(moved.a) @ B
    # B is known to 12 bits
    np.testing.assert_allclose(there[:, :2], np.asarray(rows.s_next)[:, :2], atol=5e-5)
    np.testing.assert_array_equal(moved.s[:, 2], scaled.s[:, 2])
    for name in ("r", "s_next", "a_next", "mask"):
        np.testing.assert_array_equal(getattr(moved, name), getattr(rows, name))


def test_the_last_bits_of_sums_decide_nothing() -> None:
    effect = effect_of(logged())
    other = effect._replace(matrix=effect.matrix * (1 + 1e-6))
    one, two = (corrective_of(found, 0.3, np.ones(3)).effect for found in (effect, other))
    np.testing.assert_array_equal(one, two)


def test_an_action_that_drives_nothing_is_not_shifted() -> None:
    data = logged(actions=3)
    rows = on_device(data)
    moved = corrective_of(effect_of(data), 0.3, np.ones(3))(rows, jax.random.key(1))
    np.testing.assert_array_equal(moved.a[:, 2], rows.a[:, 2])
    assert (np.asarray(moved.a[:, :2]) != np.asarray(rows.a[:, :2])).mean() > 0.9


def test_actions_that_name_a_position_are_not_shifted() -> None:
    """s' = s + K (a − s): wherever one stands, the right action is the same."""
    data = logged()
    goal = np.pad(data.actions, ((0, 0), (0, 1)))
    near = 0.3 * data.states  # so that actions explain most of what happens
    pulled = near + 0.6 * (goal - near)
    found = effect_of(dataclasses.replace(data, states=near, next_states=pulled))
    assert not found.columns[:2].any()
    assert not found.actions.any()


def test_nothing_follows_the_actions() -> None:
    data = logged()
    still = dataclasses.replace(data, next_states=data.states)  # no column ever moves
    effect = effect_of(still)
    assert "rows stay as they are" in str(effect)
    rows = on_device(still)
    moved = corrective_of(effect, 0.3, np.ones(3))(rows, jax.random.key(0))
    np.testing.assert_array_equal(moved.s, rows.s)
    np.testing.assert_array_equal(moved.a, rows.a)


def test_choices_are_refused() -> None:
    data = logged()
    signals = Signals(action=("go=l", "go=r"), categories={"go": ("l", "r")})
    chosen = dataclasses.replace(data, info=dataclasses.replace(data.info, signals=signals))
    with pytest.raises(UserError, match="choice"):
        effect_of(chosen)


def train(out: Path, algo: str = "bc", **settings: Any) -> dict[str, Any]:
    pendulum.register()
    source = out.parent / "pendulum.npz"
    if not source.exists():
        pendulum.make_data(source)
    return icql.train(
        algo,
        dataset=str(source),
        task="pendulum-test",
        steps=20,
        out=out,
        settings={"batch_size": 16, **settings},
        run={"episodes": 0, "checkpoint_every": 10},
        quiet=True,
    )


def test_a_run_learns_from_moved_rows(tmp_path: Path) -> None:
    small = {"policy.hidden": [16, 16]}
    plain = train(tmp_path / "plain", **small)
    moved = train(tmp_path / "moved", **small, **{"data.corrective": 0.3})
    assert plain["parameter_hash"] != moved["parameter_hash"]


def test_sequences_say_that_they_have_no_use_for_it(tmp_path: Path) -> None:
    small = {"length": 5, "layers": 1, "width": 8, "heads": 2, "batch_size": 8}
    plain = train(tmp_path / "plain", "dt", **small)
    asked = train(tmp_path / "asked", "dt", **small, **{"data.corrective": 0.3})
    assert plain["parameter_hash"] == asked["parameter_hash"]
