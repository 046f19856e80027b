"""Importance sampling of choices, against arithmetic on a log in exact proportions.

Two steps. The first is in state 0; choice c leads to state c three times in four, else to the
other. The behaviour takes choice 0 with probability B[state].
"""

from __future__ import annotations

import numpy as np
import pytest

from icql.data.signals import Signals
from icql.data.transitions import DataInfo, Transitions
from icql.judging.cloned import CategoricalBehaviour, fit_behaviour
from icql.judging.importance import choice_log_ratios, weigh
from icql.judging.log import Log
from icql.judging.opinion import form_opinions
from icql.progress import Display
from icql.settings.judge import JudgeSettings

GAMMA, GOES = 0.5, 0.75
B = np.array([0.25, 0.5])  # of choice 0, by state
PAID = np.array([[1.0, 2.0], [4.0, -3.0]])  # by state and choice
POLICIES = [(0, 0), (0, 1), (1, 0), (1, 1)]  # what is chosen in state 0 and in state 1
SMALL = JudgeSettings(updates=600, discount=GAMMA, hidden=(32,), batch_size=64, graph=False)


def probability(state: int, choice: int) -> float:
    return float(1 - B[state] if choice else B[state])


def exact(policy: tuple[int, int]) -> float:
    """The value of a policy, written out."""
    first = policy[0]
    after = {first: GOES, 1 - first: 1 - GOES}
    return PAID[0, first] + GAMMA * sum(p * PAID[s, policy[s]] for s, p in after.items())


@pytest.fixture(scope="module")
def log() -> Log:
    """Every pair of steps, as often as it is likely in 64 episodes."""
    s, a = [], []
    for first in (0, 1):
        for then in (0, 1):
            for second in (0, 1):
                goes = GOES if then == first else 1 - GOES
                times = 64 * probability(0, first) * goes * probability(then, second)
                assert times == int(times)
                s += [0, then] * int(times)
                a += [first, second] * int(times)
    n, hot = len(s), np.eye(2, dtype=np.float32)
    states, chosen = hot[s], hot[a]
    odd = np.arange(n) % 2
    data = Transitions(
        states=states,
        actions=chosen,
        rewards=PAID[s, a].astype(np.float32),
        next_states=np.where(odd[:, None], states, np.roll(states, -1, 0)),
        next_actions=np.where(odd[:, None], 0, np.roll(chosen, -1, 0)).astype(np.float32),
        mask=(1 - odd).astype(np.float32),
        episode=np.arange(n) // 2,
        step=odd,
        info=DataInfo(
            "choices",
            signals=Signals(action=("a=0", "a=1"), categories={"a": ("0", "1")}),
        ),
    )
    assert data.info.signals.choices
    return Log.of(data)


def taken(policy: tuple[int, int], states: np.ndarray) -> np.ndarray:
    return np.eye(2)[np.asarray(policy)[states.argmax(-1)]]


@pytest.mark.parametrize("policy", POLICIES)
def test_known_probabilities_give_the_exact_value(log, policy):
    states = log.data.states
    b = np.log(np.stack([B, 1 - B], -1))[states.argmax(-1)]
    ratios = CategoricalBehaviour(log.data.actions, b).log_ratios(taken(policy, states))
    zero = np.zeros(len(ratios))
    weighted = weigh(log, ratios, zero, zero, zero, GAMMA)
    assert weighted.per_decision(np.ones((1, len(log))))[0] == pytest.approx(exact(policy))
    # those who did as the policy does to the end, weighed by 1 / b
    whole = [
        1 / (probability(0, policy[0]) * probability(s, policy[s]))
        for e in range(len(log))
        for s in [int(states[2 * e + 1].argmax())]
        if log.data.actions[2 * e].argmax() == policy[0]
        and log.data.actions[2 * e + 1].argmax() == policy[s]
    ]
    size = sum(whole) ** 2 / sum(w * w for w in whole)
    assert weighted.effective_sample_size == pytest.approx(size)


def test_fitted_probabilities_are_those_of_the_log(log):
    model = fit_behaviour(log, np.arange(len(log)), SMALL, lambda done, states: True)
    assert isinstance(model, CategoricalBehaviour)
    found = np.exp(model.log_probs)
    expected = np.stack([B, 1 - B], -1)[log.data.states.argmax(-1)]
    seen = np.stack([log.data.actions[log.data.states[:, s] == 1].mean(0) for s in (0, 1)])
    np.testing.assert_allclose(seen[log.data.states.argmax(-1)], expected, atol=0.1)
    np.testing.assert_allclose(found, seen[log.data.states.argmax(-1)], atol=0.03)


def test_opinions_of_choices(log):
    asked = [(str(p), lambda states, p=p: taken(p, states)[None].astype("f4")) for p in POLICIES]
    for said, policy in zip(
        form_opinions(log, asked, SMALL, Display(quiet=True)), POLICIES, strict=True
    ):
        for method in ("importance", "doubly_robust"):
            assert said.methods[method]["estimate"] == pytest.approx(exact(policy), abs=0.2)


def test_what_nobody_chose_has_no_weight_and_no_nan(log):
    b = np.log(np.full((len(log.data), 2), 0.5))
    never = np.eye(2)[1 - log.data.actions.argmax(-1)]
    ratios = choice_log_ratios(log.data.actions, never, b)
    assert (ratios == -np.inf).all()
    v, zero = np.full(len(ratios), 7.0), np.zeros(len(ratios))
    weighted = weigh(log, ratios, zero, v, zero, GAMMA)
    assert weighted.effective_sample_size == 0
    assert weighted.per_decision(np.ones((1, len(log))))[0] == 0
    assert weighted.doubly_robust(np.ones((1, len(log))))[0] == pytest.approx(7.0)


def test_the_sample_is_as_small_as_the_weights_say_before_they_are_clipped(log):
    """Two episodes stand out, one by e^20 and one by e^18; clipped, both would weigh 100."""
    ratios = np.zeros(len(log.data))
    ratios[[1, 3]] = 20.0, 18.0
    zero = np.zeros(len(ratios))
    weighted = weigh(log, ratios, zero, zero, zero, GAMMA)
    rho = np.exp(np.array([20.0, 18.0] + [0.0] * (len(log) - 2)))
    size = rho.sum() ** 2 / (rho**2).sum()
    assert size < 1.3
    assert weighted.effective_sample_size == pytest.approx(size)
    assert weighted.weights[0, -1] == weighted.weights[1, -1]  # what is weighed is clipped
