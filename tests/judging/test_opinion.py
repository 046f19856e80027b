"""Fitted Q evaluation against dynamic programming, and the verdicts that follow."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import chain
from icql.errors import UserError
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


def test_intervals_are_widened_by_what_the_log_shows_to_be_missed(judged):
    """By the miss on the behaviour or the broken equation, whichever is more; never by both."""
    _, _, opinions = judged
    one = opinions["right"]
    corrected = one.methods["corrected"]
    assert one.residual == pytest.approx(corrected["estimate"] - one.estimate)

    def width(miss: float, residual: float) -> float:
        moved = {**corrected, "estimate": one.estimate + residual}
        methods = {**one.methods, "corrected": moved}
        low, high = dataclasses.replace(one, miss=miss, methods=methods).interval
        return float(high - low)

    bare = width(0.0, 0.0)
    assert width(-3.0, 2.0) == pytest.approx(bare + 6)
    assert width(1.0, -4.0) == pytest.approx(bare + 8)
    left = opinions["left"]
    _, (low, high) = one.difference(left)
    alike = {**left.methods, "corrected": {"estimate": left.estimate + one.residual}}
    _, (least, most) = one.difference(dataclasses.replace(left, methods=alike))
    apart = abs(one.residual - left.residual)
    assert high - low == pytest.approx(most - least + 2 * max(0.0, apart - abs(one.miss)))


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
