"""The rule and its vetoes."""

from __future__ import annotations

import dataclasses

import pytest

from icql.judging.verdict import LEAST_EPISODES, Evidence, decide

GOOD = Evidence(
    episodes=100,
    difference=2.0,
    interval=(1.0, 3.0),
    estimates=(9.0, 10.0, 11.0),
    possible=(-10.0, 100.0),
    explained=0.8,
    outside=0.1,
    moved=0.1,
    far=0.1,
)


@pytest.mark.parametrize(
    ("change", "verdict", "word"),
    [
        ({}, "better", "+2"),
        ({"difference": -2.0, "interval": (-3.0, -1.0)}, "worse", "-2"),
        ({"interval": (-0.1, 3.0)}, "not shown", "0 is in it"),
        ({"interval": (0.0, 3.0)}, "not shown", "0 is in it"),
        ({"others": {"doubly_robust": (-2.0, -1.0)}}, "not shown", "doubly_robust"),
        ({"others": {"doubly_robust": (-2.0, 1.0)}}, "better", "+2"),
        ({"episodes": 1, "interval": None}, "cannot be told", "a single episode"),
        ({"episodes": LEAST_EPISODES - 1}, "cannot be told", "9 episodes"),
        ({"episodes": LEAST_EPISODES}, "better", "+2"),
        ({"estimates": (9.0, 101.0)}, "cannot be told", "diverged"),
        ({"estimates": (9.0, -10.1)}, "cannot be told", "-10.1"),
        ({"estimates": (9.0, float("nan"))}, "cannot be told", "not finite"),
        ({"explained": 0.0}, "cannot be told", "held-out"),
        ({"explained": float("nan")}, "cannot be told", "held-out"),
        ({"explained": None}, "better", "+2"),
        ({"outside": 0.51}, "cannot be told", "runs away: after 51 %"),
        ({"outside": 0.5}, "better", "+2"),
        ({"outside": None}, "better", "+2"),
        ({"moved": -1.5}, "cannot be told", "--updates"),
        ({"far": 0.51}, "cannot be told", "51 %"),
        ({"far": None}, "better", "+2"),
        ({"interval": None}, "cannot be told", "no interval"),
    ],
)
def test_the_table(change, verdict, word):
    found, reasons = decide(dataclasses.replace(GOOD, **change), "the log")
    assert found == verdict
    assert word in " ".join(reasons)


def test_a_worse_one_is_not_shown_where_another_method_says_better():
    worse = dataclasses.replace(
        GOOD, difference=-2.0, interval=(-3.0, -1.0), others={"importance": (0.5, 1.0)}
    )
    assert decide(worse, "the log")[0] == "not shown"


def test_all_vetoes_are_said():
    bad = dataclasses.replace(GOOD, episodes=3, far=0.9, explained=-1.0)
    assert len(decide(bad, "the log")[1]) == 3
