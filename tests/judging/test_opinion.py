"""Fitted Q evaluation against dynamic programming, and the verdicts that follow."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import chain
from icql.errors import UserError
from icql.judging.bootstrap import interval, replicated_means
from icql.judging.log import Log
from icql.judging.opinion import _Acts, _Asked, form_opinions
from icql.judging.verdict import decide
from icql.progress import Display
from icql.settings.judge import JudgeSettings

SMALL = JudgeSettings(
    updates=800, discount=chain.GAMMA, hidden=(32, 32), batch_size=128, target_rate=0.05
)
ACTIONS = {"right": 0.8, "like the log": 0.2, "left": -0.3}
NOBODYS = 5.0


def constant(action: float):
    return lambda states: np.full((1, len(states), 1), action, np.float32)


@pytest.fixture(scope="module")
def judged():
    log = Log.of(chain.log())
    named = {**ACTIONS, "far": NOBODYS}
    asked = [(label, constant(action)) for label, action in named.items()]
    opinions = form_opinions(log, asked, SMALL, Display(quiet=True))
    starts = chain.where(log.data.states[log.first])
    return log, starts, dict(zip(named, opinions, strict=True))


@pytest.mark.parametrize("label", list(ACTIONS))
def test_estimates_are_those_of_dynamic_programming(judged, label):
    _, starts, opinions = judged
    exact = chain.value(np.full(chain.PLACES, ACTIONS[label]))[starts].mean()
    found = opinions[label]
    low, high = found.interval
    assert low < exact < high
    assert found.estimate == pytest.approx(exact, abs=0.6)  # values lie between -3 and 10


def test_the_behaviour_is_evaluated_right(judged):
    log, starts, opinions = judged
    exact = chain.noisy_value(0.2, 0.5)[starts].mean()
    one = opinions["right"]
    assert one.returns.mean() == pytest.approx(exact, abs=0.5)  # 300 episodes
    assert abs(one.miss) < 0.4
    cut = log.returns_to_go(chain.GAMMA, 0.0)[log.first]
    assert (np.abs(one.returns - cut) > 1e-6).sum() == log.cut.sum()


@pytest.mark.parametrize(
    ("label", "verdict"), [("right", "better"), ("like the log", "not shown"), ("left", "worse")]
)
def test_verdicts(judged, label, verdict):
    _, _, opinions = judged
    assert decide(opinions[label].evidence(), "the log")[0] == verdict


def plain(values: np.ndarray) -> np.ndarray:
    """The interval of one estimate (S, E), by itself."""
    means = values.mean(1)
    replicates = replicated_means(values.mean(0), SMALL.seed)
    return np.array(interval(replicates, SMALL.seed, spread=means.std(ddof=1), nets=len(means)))


def test_intervals_hold_those_of_both_estimates(judged):
    """Of fitted Q evaluation and of what its errors on logged steps correct; by the miss, wider."""
    _, _, opinions = judged
    one, left = (dataclasses.replace(opinions[x], miss=0.0) for x in ("right", "left"))
    assert one.corrected.shape == one.values.shape
    assert one.corrected.mean() == pytest.approx(one.methods["corrected"]["estimate"])
    assert one.residual == pytest.approx(one.corrected.mean() - one.estimate)
    for moved in (-7.0, 7.0):
        away = dataclasses.replace(one, corrected=one.values + moved)
        low, high = plain(one.values)
        expected = low + min(0.0, moved), high + max(0.0, moved)
        assert away.interval == pytest.approx(expected)
        both = plain(away.values - left.values), plain(away.corrected - left.corrected)
        expected = min(x[0] for x in both), max(x[1] for x in both)
        assert away.difference(left)[1] == pytest.approx(expected)
    # networks that agree on Q may differ in what they correct
    apart = dataclasses.replace(one, corrected=one.values + 3.0 * np.array([[-1.0], [0.0], [1.0]]))
    assert apart.interval[1] - apart.interval[0] > 8
    wider = np.array(dataclasses.replace(one, miss=-2.0).interval)
    np.testing.assert_allclose(wider, one.interval + np.array([-2, 2]))
    broken = dataclasses.replace(one, corrected=np.full_like(one.corrected, np.nan))
    assert broken.interval is None


def test_the_corrected_behaviour_is_the_logged_one_whatever_q_says(judged):
    """Its errors add up to what was missed: r + γ V(s') − Q(s, a), with V(s) = Q(s, a) logged."""
    log, _, opinions = judged
    data, returns = log.data, opinions["right"].returns
    rng = np.random.default_rng(0)
    table = rng.normal(size=(2, len(data)))
    following = np.where(log.broken, 0.0, np.roll(table, -1, 1))

    class Any:
        def __call__(self, policy, states, actions):
            return following if states is data.next_states else table

    acts = _Acts("like the log", data.actions[None], data.next_actions[None])
    found = _Asked(log, acts, Any(), range(1), SMALL, returns).weighted(_Alike())[1]
    ended = ~log.cut
    exact = log.returns_to_go(chain.GAMMA, 0.0)[log.first]
    assert found.shape == (2, len(log))
    np.testing.assert_allclose(found[:, ended], np.stack([exact, exact])[:, ended], atol=1e-6)


class _Alike:
    def log_ratios(self, policy):
        return np.zeros(policy.shape[0])


def test_against_another_policy(judged):
    _, _, opinions = judged
    left, right = opinions["left"], opinions["right"]
    assert decide(right.evidence(left), "left")[0] == "better"
    assert decide(left.evidence(right), "right")[0] == "worse"
    difference, (low, high) = right.difference(left)
    assert difference == pytest.approx(right.estimate - left.estimate)
    assert low < difference < high


def test_other_methods(judged):
    _, starts, opinions = judged
    for label, action in ACTIONS.items():
        exact = chain.value(np.full(chain.PLACES, action))[starts].mean()
        robust = opinions[label].methods["doubly_robust"]["estimate"]
        assert robust == pytest.approx(exact, abs=0.8)
        corrected = opinions[label].methods["corrected"]["estimate"]
        assert corrected == pytest.approx(exact, abs=0.8)
        assert abs(corrected - robust) > 1e-3  # whose weights differ
    sizes = [opinions[label].sample_size for label in ACTIONS]
    assert sizes[1] > 250  # of 300: it acts like the log
    assert max(sizes[0], sizes[2]) < 100
    values = [opinions[label].methods["local_critic"]["estimate"] for label in ACTIONS]
    assert values[0] > values[1] > values[2]


def test_nobody_tried_what_is_far(judged):
    _, _, opinions = judged
    assert opinions["like the log"].far < 0.1
    assert opinions["like the log"].held_out["explained"] > 0.3
    away = opinions["far"]
    assert away.far == 1.0
    verdict, reasons = decide(away.evidence(), "the log")
    assert verdict == "cannot be told"
    assert any("100 %" in reason for reason in reasons)


def test_actions_that_are_not_finite_are_refused(judged):
    log, _, _ = judged
    with pytest.raises(UserError, match="not finite"):
        form_opinions(log, [("broken", constant(np.nan))], SMALL, Display(quiet=True))


def test_the_error_on_held_out_rows_is_that_of_the_networks_mean(judged):
    """Two networks off by the same on either side: their mean is exact, each alone is not."""
    log, _, opinions = judged
    data, rng = log.data, np.random.default_rng(0)
    noise = rng.normal(0.0, 5.0, len(data))
    # nothing follows: targets are the rewards, which are known
    ended = Log.of(dataclasses.replace(data, mask=np.zeros_like(data.mask)))

    class Known:
        def __call__(self, policy, states, actions):
            if states is not data.states and len(states) != len(data):
                raise AssertionError("all rows are asked for")
            return np.stack([data.rewards + noise, data.rewards - noise])

        def held(self, values):
            return values

    acts = _Acts.of(ended, "known", constant(0.8))
    asked = _Asked(ended, acts, Known(), range(1), SMALL, opinions["right"].returns)
    found = asked.errors(np.arange(len(ended)))
    assert found["td_error"] == pytest.approx(0.0, abs=1e-5)
    assert found["explained"] == pytest.approx(1.0)
