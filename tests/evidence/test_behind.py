"""Influences add up to values: of the graph, the linear module and the ridge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icql
import pendulum
from icql.errors import UserError
from icql.evidence.behind import gather, linear_parts, outcomes, ridge_parts

B, N, D = 4, 5, 3
SMALL = {
    "batch_size": 16,
    "critics": 2,
    "hidden": [8],
    "policy.hidden": [8],
    "context.k": 4,
    "local.layers": 3,
    "local.features": 6,
}


def numbers(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("start", ["zero", "learned"])
def test_parts_of_the_linear_module_are_those_of_td_layer_by_layer(start):
    phi, phi_next = numbers(B, N, D, seed=0), numbers(B, N, D, seed=1)
    r, query, c = numbers(B, N, seed=2), numbers(B, D, seed=3), 0.3 * numbers(4, D, D, seed=4)
    mask = (numbers(B, N, seed=5) > -1).astype(float)
    w0 = numbers(D, seed=6) if start == "learned" else None

    def value(rewards: np.ndarray) -> np.ndarray:
        found = []
        for i in range(B):
            w = np.zeros(D) if w0 is None else w0.copy()
            for layer in c:
                delta = rewards[i] + (0.9 * mask[i][:, None] * phi_next[i] - phi[i]) @ w
                w = w + layer @ (phi[i].T @ delta) / N
            found.append(query[i] @ w)
        return np.array(found)

    parts, prior = linear_parts(phi, phi_next, r, mask, query, c, w0, 0.9)
    np.testing.assert_allclose(prior + parts.sum(1), value(r), rtol=1e-9)
    if start == "zero":  # a row's part is what is lost without its reward
        for j in range(N):
            without = r.copy()
            without[:, j] = 0
            np.testing.assert_allclose(parts[:, j], value(r) - value(without), rtol=1e-9)


def test_parts_of_the_ridge_are_those_of_the_regression():
    phi, y = numbers(B, N, D, seed=0), numbers(B, N, seed=1)
    query, w0 = numbers(B, D, seed=2), numbers(D, seed=3)
    parts, prior = ridge_parts(phi, y, query, 0.2, w0)
    for i in range(B):
        left = phi[i].T @ phi[i] + 0.2 * N * np.eye(D)
        w = np.linalg.solve(left, phi[i].T @ y[i] + 0.2 * N * w0)
        np.testing.assert_allclose(prior[i] + parts[i].sum(), query[i] @ w, rtol=1e-9)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pendulum.register()
    return pendulum.make_data(tmp_path_factory.mktemp("data") / "pendulum.npz", steps=600)


@pytest.mark.parametrize(
    ("algo", "changes"),
    [
        ("icql", SMALL),
        ("icql", {**SMALL, "local.initial": "learned", "local.kernel": 1.0}),
        ("icql", {**SMALL, "local.module": "ridge", "context.exclude": "episode"}),
        ("icql-graph", {"policy.hidden": [8], "draw.compared": 8}),
    ],
    ids=["linear", "linear with a prior and a kernel", "ridge", "graph"],
)
def test_influences_of_a_trained_critic_add_up_to_its_values(log, algo, changes, tmp_path):
    run: dict[str, Any] = {"episodes": 0, "evaluate_every": 20}
    icql.train(
        algo,
        dataset=str(log),
        steps=20,
        out=tmp_path / "run",
        settings=changes,
        run=run,
        quiet=True,
    )
    critic = icql.load_critic(tmp_path / "run")
    data = icql.load_dataset(str(log))
    rows = [3, 250, 400]
    s, a = data.states[rows], data.actions[rows]
    found = critic.evidence(s, a)
    np.testing.assert_allclose(found.value, found.prior + found.influence.sum(1), rtol=1e-12)
    np.testing.assert_allclose(found.value, critic.q(s, a), rtol=1e-3, atol=1e-4)
    near, away = critic.neighbours(s)
    for i in range(3):
        assert sorted(found.rows[i]) == sorted(near[i])
        assert (np.diff(np.abs(found.influence[i])) <= 1e-12).all()  # largest first
        back = dict(zip(near[i].tolist(), away[i].tolist(), strict=True))
        np.testing.assert_allclose(found.distance[i], [back[r] for r in found.rows[i].tolist()])
    np.testing.assert_array_equal(found.episode, np.asarray(data.episode)[found.rows])
    np.testing.assert_array_equal(found.step, np.asarray(data.step)[found.rows])
    told = found.said(1)
    assert f"{found.rows[1, 0]:6d}" in told
    assert "influence" in told


def test_a_global_critic_has_no_evidence(log, tmp_path):
    small = {"batch_size": 8, "hidden": [4], "policy.hidden": [4]}
    out = tmp_path / "run"
    icql.train(
        "iql", dataset=str(log), steps=1, out=out, settings=small, run={"episodes": 0}, quiet=True
    )
    with pytest.raises(UserError, match="a global critic has no context"):
        icql.load_critic(out).evidence(np.zeros((1, 4)), np.zeros((1, 1)))


def test_outcomes_and_what_is_said_of_them(log):
    data = icql.load_dataset(str(log))
    found = outcomes(data, 0.9)
    for i in (0, 100, 500):
        total, j = 0.0, i
        while True:
            total += 0.9 ** (j - i) * float(data.rewards[j])
            last = j + 1 == len(data) or data.episode[j + 1] != data.episode[i]
            if last or not data.mask[j]:
                break
            j += 1
        assert found[i] == pytest.approx(total)
    rows = np.array([[5, 9, 7, 2]])
    parts = np.array([[0.1, -4.0, 2.0, 1.0]])
    outcome = np.zeros(len(data))
    outcome[[5, 9, 7, 2]] = [-3.0, 8.0, -2.0, 9.0]
    one = gather(data, rows, np.ones((1, 4)), parts, np.array([0.5]), outcome)
    assert one.rows.tolist() == [[9, 7, 2, 5]]
    assert one.value[0] == pytest.approx(-0.4)
    assert one.rank[0] == 0.5  # -3 and -2 of four
    np.testing.assert_allclose(one.interval[0], np.quantile([-3, -2, 8, 9], (0.05, 0.95)))
