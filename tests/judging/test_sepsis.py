"""The judge beside exact values: of a made-up task and, where it is installed, of icu-sepsis."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

import icql
from icql.judging.log import Log
from icql.judging.opinion import form_opinions
from icql.progress import Display
from icql.settings.judge import JudgeSettings

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
GAMMA, LIVE, CHOICES = 0.9, 12, 4
SMALL = JudgeSettings(
    updates=800, discount=GAMMA, seeds=2, hidden=(64, 64), batch_size=128, graph=False
)


@pytest.fixture(scope="module")
def bench():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("judge_sepsis")


@pytest.fixture(scope="module")
def made_up(bench):
    """Choice 0 is often right and choice 3 mostly wrong; the last state but one pays 1."""
    rng = np.random.default_rng(0)
    n = LIVE + bench.ENDS
    goes = rng.dirichlet(np.full(n, 0.3), (n, CHOICES))
    goes[..., LIVE:] = 0
    goes /= goes.sum(-1, keepdims=True)
    well = np.linspace(0.9, 0.1, CHOICES)[None] * rng.uniform(0.5, 1.0, (n, 1))
    goes *= 0.7
    goes[..., LIVE], goes[..., LIVE + 1] = 0.3 * (1 - well), 0.3 * well
    paid = np.zeros_like(goes)
    paid[..., LIVE + 1] = 1.0
    starts = np.append(np.full(LIVE, 1 / LIVE), np.zeros(bench.ENDS))
    features = rng.normal(size=(n, 3)).astype(np.float32)
    features[LIVE:] = 0
    return bench.Tabular(goes, paid, starts, rng.dirichlet(np.ones(CHOICES), n), features)


@pytest.fixture(scope="module")
def sepsis(bench):
    found = bench.installed()
    if found is None:
        pytest.skip("icu-sepsis is not installed: pip install --no-deps icu-sepsis==2.0.1")
    return found


def step_by_step(task, policy, discount):
    """Probabilities of all states, moved on one step at a time; rewards hang on arrivals alone."""
    paid = task.paid[0, 0]
    np.testing.assert_array_equal(
        task.paid[: task.live], np.broadcast_to(paid, task.paid[:-3].shape)
    )
    where, total, factor = task.starts.copy(), 0.0, 1.0
    while (still := where[: task.live].sum()) * factor > 1e-6:
        where[task.live :] = 0  # nothing follows an end
        both = where[:, None] * policy
        arrivals = np.tensordot(both, task.goes, 2)
        total += factor * (arrivals * paid).sum()
        where = arrivals
        factor *= discount
        assert still <= 1 + 1e-9
    return total


@pytest.mark.parametrize("name", ["made_up", "sepsis"])
def test_exact_values_are_those_of_walking_step_by_step(request, name):
    task = request.getfixturevalue(name)
    policy = task.mixed(0.3)
    policy[::3] = np.eye(task.experts.shape[1])[0]
    walked = step_by_step(task, policy, GAMMA)
    assert task.value(policy, GAMMA) == pytest.approx(walked, abs=1e-5)


def test_a_log_has_the_probabilities_of_the_task(made_up):
    policy = made_up.mixed(0.3)
    log = made_up.collect(policy, 4000, 0)
    s = made_up.state_of(log["observations"])
    seen = np.stack([np.bincount(log["actions"][s == i], minlength=CHOICES) for i in range(LIVE)])
    np.testing.assert_allclose(seen / seen.sum(1, keepdims=True), policy[:LIVE], atol=0.06)
    assert log["terminals"].sum() == 4000
    then = made_up.state_of(log["next_observations"])
    inside = np.flatnonzero(~log["terminals"])
    np.testing.assert_array_equal(then[inside], s[inside + 1])
    reached = np.bincount(then[(s == 0) & (log["actions"] == 0)], minlength=LIVE)[:LIVE]
    odds = made_up.goes[0, 0, :LIVE]
    np.testing.assert_allclose(reached / reached.sum(), odds / odds.sum(), atol=0.08)


def test_made_policies_are_as_good_as_their_names(made_up):
    worth = [made_up.value(np.eye(CHOICES)[made_up.made(b, w, GAMMA, 0)], GAMMA)
             for b, w in ((1, 0), (0.5, 0), (0, 0.5), (0, 1))]  # fmt: skip
    assert sorted(worth, reverse=True) == worth
    others = np.random.default_rng(1).integers(CHOICES, size=(200, LIVE + 3))
    found = [made_up.value(np.eye(CHOICES)[one], GAMMA) for one in others]
    assert worth[0] >= max(found)
    assert worth[-1] <= min(found)


@pytest.mark.parametrize(("name", "episodes"), [("made_up", 300), ("sepsis", 1500)])
def test_the_judge_beside_exact_values(bench, request, tmp_path, name, episodes):
    task = request.getfixturevalue(name)
    behaviour, hot = task.mixed(0.3), np.eye(task.experts.shape[1])
    np.savez(tmp_path / "log.npz", **task.collect(behaviour, episodes, 0))
    log = Log.of(icql.load_dataset(str(tmp_path / "log.npz")))
    assert len(log.data.info.signals.choices) == len(hot)
    asked = {"best": task.made(1, 0, GAMMA, 0), "worst": task.made(0, 1, GAMMA, 0)}
    opinions = form_opinions(
        log, [(k, task.follow(one)) for k, one in asked.items()], SMALL, Display(quiet=True)
    )
    logged = task.value(behaviour, GAMMA)
    assert opinions[0].returns.mean() == pytest.approx(logged, abs=0.05)
    for said in opinions:
        truth = task.value(hot[asked[said.label]], GAMMA)
        found = bench.judged(said, truth, logged)
        assert found["fqe"]["estimate"] == pytest.approx(truth, abs=0.1)
        assert not found["wrong"], found
        # less than a row for each of 713 × 25 states and choices is too little: docs/judging.md
        assert found["fqe"]["covered"] or name == "sepsis", (found["fqe"], truth)
    assert opinions[0].estimate > opinions[1].estimate + 0.03


def test_a_wrong_verdict_is_counted(bench, made_up, monkeypatch):
    for verdict, truth, wrong in (
        ("better", 0.4, True), ("better", 0.6, False), ("worse", 0.6, True),
        ("worse", 0.4, False), ("not shown", 0.4, False), ("cannot be told", 0.6, False),
    ):  # fmt: skip
        monkeypatch.setattr(bench, "decide", lambda *_, v=verdict: (v, []))
        assert bench.judged(_Said(), truth, 0.5)["wrong"] is wrong


class _Said:
    """As much of an opinion as is read."""

    label, estimate, interval, methods = "one", 0.5, (0.4, 0.6), dict[str, object]()
    far = sample_size = residual = 0.0
    held_out = {"outside": 0.0}  # noqa: RUF012
    values = np.zeros((2, 3))

    def evidence(self):
        return None
