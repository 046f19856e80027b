"""The solved graph as a critic, from a finished run."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import icql
import pendulum
from icql.errors import UserError
from icql.graph.critic import GraphCritic
from icql.training.run_folder import RunFolder
from icql.weights import save_arrays


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return pendulum.make_data(tmp_path_factory.mktemp("data") / "pendulum.npz", steps=400)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("graph") / "run"
    small = {"policy.hidden": [8], "batch_size": 8, "draw.neighbours": 5, "draw.compared": 12}
    small["draw.space"] = "raw"  # distances that brute force can check
    icql.train("icql-graph", dataset=str(data), steps=3, out=out, settings=small, quiet=True)
    return out


@pytest.fixture(scope="module")
def critic(run) -> GraphCritic:
    found = icql.load_critic(run)
    assert isinstance(found, GraphCritic)
    assert (
        repr(found) == f"<GraphCritic on {found.data.info.name}: values of {len(found.data)} rows>"
    )
    return found


def test_a_value_is_what_similar_states_and_actions_brought(critic):
    """Nearest states of other episodes by brute force; kernel over their actions."""
    d, rng = critic.data, np.random.default_rng(0)
    rows = rng.choice(len(d), 7, replace=False)
    s, a = d.states[rows] + np.float32(0.01), rng.uniform(-1, 1, (7, d.action_dim))
    apart = np.linalg.norm(np.float64(d.states)[None] - np.float64(s)[:, None], axis=-1)
    near = np.argsort(apart, axis=1, kind="stable")[:, :5]
    away = np.square(np.float64(d.actions)[near] - a[:, None]).sum(-1)
    weights = np.exp(-away / (2 * away.mean(1, keepdims=True)))
    expected = (weights * critic.row_q[near]).sum(1) / weights.sum(1)
    np.testing.assert_allclose(critic.q(s, a), expected, rtol=1e-9)
    found, influence = critic.influences(s, a)
    np.testing.assert_array_equal(found, near)
    np.testing.assert_allclose((influence * critic.row_q[found]).sum(1), critic.q(s, a))
    values = critic.row_q[near]
    v = values.mean(1)
    for _ in range(50):
        u = np.where(values < v[:, None], 0.3, 0.7)
        v = (u * values).sum(1) / u.sum(1)
    np.testing.assert_allclose(critic.v(s), v, rtol=1e-6)


def test_a_logged_row_is_judged_by_other_episodes(critic):
    rows = np.array([0, 3])
    near, _ = critic.neighbours(critic.data.states[rows], rows)
    assert (critic.data.episode[near] != critic.data.episode[rows][:, None]).all()


def test_shapes_are_checked(critic):
    d = critic.data
    with pytest.raises(UserError, match=r"states: must have shape \(B, "):
        critic.v(d.states[0])
    with pytest.raises(UserError, match=r"actions: must have shape \(2, "):
        critic.q(d.states[:2], d.actions[:3])


def test_a_damaged_graph_is_refused(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    save_arrays(copy / "graph.safetensors", {"q": np.zeros(3)}, of=RunFolder.open(copy).identity)
    with pytest.raises(UserError, match="a value for every row"):
        icql.load_critic(copy)


def test_cloning_without_comparison_has_no_critic(data, tmp_path):
    small = {"policy.hidden": [8], "batch_size": 8, "draw.by": "uniform"}
    out = tmp_path / "run"
    icql.train("icql-graph", dataset=str(data), steps=1, out=out, settings=small, quiet=True)
    with pytest.raises(UserError, match="has no critic"):
        icql.load_critic(out)
