"""Every defect is caught at its row, and clean data passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.log_cases import CLEAN, PLAIN, source
from icql.data import Steps, Task, load_dataset
from icql.data.datasets import load_steps, validate_dataset
from icql.data.validation.findings import Findings
from icql.data.validation.rules import validate

RUNNER = Task("runner", "Hopper-v4", min_score=0.0, max_score=10.0, max_episode_steps=60)


def check(steps: Steps, task: Task | None = None) -> Findings:
    return validate(source(steps, task))


def changed(steps: Steps, name: str, index: object, value: object) -> Steps:
    array = getattr(steps, name).copy()
    array[index] = value
    return replace(steps, **{name: array})


def rules(findings: Findings) -> list[str]:
    return [finding.rule for finding in (*findings.errors, *findings.warnings)]


ENDS = np.flatnonzero(CLEAN.terminals | CLEAN.timeouts)
STARTS = np.append(0, ENDS[:-1] + 1)


@pytest.mark.parametrize("task", [None, RUNNER])
@pytest.mark.parametrize("steps", [CLEAN, PLAIN])
def test_clean_data_has_no_findings(steps: Steps, task: Task | None) -> None:
    findings = check(steps, task)
    assert (findings.errors, findings.warnings) == ((), ())
    assert findings.ok
    assert findings.transitions is not None
    assert len(findings.transitions) == len(steps) - steps.timeouts.sum() - (
        steps.next_observations is None and steps.terminals[-1]
    )


# --- one defect, one finding ------------------------------------------------------------------


def shifted(by: int) -> Callable[[], Steps]:
    return lambda: replace(CLEAN, rewards=np.roll(CLEAN.rewards, by))


def crossing() -> Steps:
    """The end of the fourth episode is not marked."""
    steps = changed(CLEAN, "terminals", ENDS[3], False)
    return changed(steps, "timeouts", ENDS[3], False)


def shuffled() -> Steps:
    order = np.random.default_rng(1).permutation(len(CLEAN))
    arrays = ("observations", "actions", "rewards", "next_observations")
    return replace(CLEAN, **{name: getattr(CLEAN, name)[order] for name in arrays})


def reset_too_early() -> Steps:
    following = np.roll(CLEAN.observations, -1, axis=0)
    return replace(CLEAN, next_observations=following)


def repeated() -> Steps:
    rows = np.insert(np.arange(len(PLAIN)), 8, 7)
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    return replace(PLAIN, **{name: getattr(PLAIN, name)[rows] for name in names})


def copied_episode() -> Steps:
    rows = np.append(np.arange(len(CLEAN)), np.arange(STARTS[5], ENDS[5] + 1))
    names = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    steps = replace(CLEAN, **{name: getattr(CLEAN, name)[rows] for name in names})
    noise = 1e-5 * np.random.default_rng(2).normal(size=steps.observations.shape)
    return replace(
        steps,
        observations=(steps.observations + noise).astype(np.float32),
    )


def same_length(terminal: bool) -> Steps:
    """Twenty episodes that all end at step 60."""
    ends = np.arange(20 * 60) % 60 == 59
    generator = np.random.default_rng(3)
    return Steps(
        generator.normal(size=(1200, 3)).astype(np.float32),
        generator.uniform(-1, 1, (1200, 2)).astype(np.float32),
        generator.normal(size=1200).astype(np.float32),
        ends & terminal,
        ends & (not terminal),
    )


def half_invalid() -> Steps:
    valid = np.ones(len(CLEAN), np.bool_)
    valid[4:9] = False
    steps = changed(CLEAN, "observations", slice(4, 9), np.nan)
    steps = changed(steps, "next_observations", slice(3, 9), np.nan)
    return replace(changed(steps, "next_observations", 3, 0.0), valid=valid)


Place = tuple[str, str, int | None, str | None]
DEFECTS: dict[str, tuple[Callable[[], Steps], Task | None, Place]] = {
    "NaN observation": (
        lambda: changed(PLAIN, "observations", (slice(17, 19), 2), np.nan),
        None,
        ("error", "non_finite", 17, "observations[2]"),
    ),
    "infinite action": (
        lambda: changed(CLEAN, "actions", (17, 1), np.inf),
        None,
        ("error", "non_finite", 17, "actions[1]"),
    ),
    "NaN reward": (
        lambda: changed(CLEAN, "rewards", 17, np.nan),
        None,
        ("error", "non_finite", 17, "rewards"),
    ),
    "NaN successor": (
        lambda: changed(CLEAN, "next_observations", (ENDS[0], 0), np.nan),
        None,
        ("error", "non_finite", int(ENDS[0]), "next_observations[0]"),
    ),
    "invalid rows": (half_invalid, None, ("warning", "invalid_rows", 4, "valid")),
    "episode end unmarked": (
        crossing,
        None,
        ("error", "episode_crossing", int(ENDS[3]), "next_observations"),
    ),
    "episode end unmarked, no successors": (
        lambda: replace(crossing(), next_observations=None),
        None,
        ("warning", "episode_crossing", int(ENDS[3]), "timeouts"),
    ),
    "reset before logging": (
        reset_too_early,
        None,
        ("warning", "episode_crossing", int(ENDS[0]), "next_observations"),
    ),
    "shuffled": (shuffled, None, ("error", "unordered", 0, "next_observations")),
    "repeated step": (repeated, None, ("warning", "repeated_steps", 8, None)),
    "rewards late": (shifted(1), None, ("warning", "shifted_rewards", 0, "rewards")),
    "rewards early": (shifted(-1), None, ("warning", "shifted_rewards", 0, "rewards")),
    "timeouts as terminals": (
        lambda: same_length(terminal=True),
        RUNNER,
        ("warning", "timeouts_as_terminals", 59, "terminals"),
    ),
    "timeouts as terminals, unknown task": (
        lambda: same_length(terminal=True),
        None,
        ("warning", "timeouts_as_terminals", 59, "terminals"),
    ),
    "constant observation": (
        lambda: changed(PLAIN, "observations", (slice(None), 1), 3.0),
        None,
        ("warning", "constant_dimension", None, "observations[1]"),
    ),
    "constant actions": (
        lambda: changed(CLEAN, "actions", slice(None), 0.5),
        None,
        ("warning", "constant_dimension", None, "actions[0–1]"),
    ),
    "actions out of bounds": (
        lambda: changed(CLEAN, "actions", (21, 1), -1.5),
        replace(RUNNER, d4rl=True),
        ("warning", "actions_out_of_bounds", 21, "actions[1]"),
    ),
    "actions without bounds": (
        lambda: changed(CLEAN, "actions", (21, 1), -1.5),
        RUNNER,
        ("error", "actions_out_of_bounds", 21, "actions[1]"),
    ),
    "copied episode": (
        copied_episode,
        None,
        ("warning", "duplicate_episodes", len(CLEAN), None),
    ),
    "no end": (
        lambda: replace(PLAIN, terminals=PLAIN.terminals & False, timeouts=PLAIN.timeouts & False),
        None,
        ("error", "no_transitions", None, None),
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found_where_it_is(defect: str) -> None:
    make, task, (severity, rule, row, column) = DEFECTS[defect]
    findings = check(make(), task)
    group = findings.errors if severity == "error" else findings.warnings
    expected = [f for f in group if f.rule == rule]
    assert [(f.file, f.row, f.column) for f in expected] == [("log.npz", row, column)]
    assert findings.ok == (severity == "warning")
    # Nothing else is blamed: a rule that cries at every defect would help nobody.
    also = {"shuffled": {"shifted_rewards"}}.get(defect, set())
    assert set(rules(findings)) - also == {rule}


def test_a_true_timeout_is_no_terminal() -> None:
    assert rules(check(same_length(terminal=False), RUNNER)) == []


def test_actions_of_a_task_with_other_bounds_pass() -> None:
    wide = changed(CLEAN, "actions", (21, 1), -1.5)
    assert rules(check(wide, replace(RUNNER, unit_actions=False))) == []


def test_rewards_that_cannot_be_told_apart_are_not_blamed() -> None:
    noise = np.random.default_rng(4).normal(size=len(CLEAN)).astype(np.float32)
    sparse = (np.arange(len(CLEAN)) % 97 == 0).astype(np.float32)
    for rewards in (noise, sparse, np.zeros_like(noise)):
        assert "shifted_rewards" not in rules(check(replace(CLEAN, rewards=rewards)))


def test_several_defects_are_all_reported() -> None:
    steps = changed(changed(crossing(), "rewards", 9, np.nan), "actions", (21, 1), 7.0)
    assert rules(check(steps)) == ["non_finite", "episode_crossing", "actions_out_of_bounds"]


# --- embedded and real data --------------------------------------------------------------------


def test_embedded_data_is_clean_and_its_shifted_rewards_are_seen() -> None:
    findings, source = validate_dataset("hopper-mini")
    assert findings.as_json() == {"ok": True, "errors": [], "warnings": [], "transitions": 59995}
    assert source is not None
    for shift in (1, -1):
        late = replace(source.steps, rewards=np.roll(source.steps.rewards, shift))
        assert rules(check(late, source.task)) == ["shifted_rewards"]


def test_real_kitchen_partial_has_only_warnings(d4rl_dir: Path) -> None:
    findings, _ = validate_dataset(d4rl_dir / "kitchen-partial-v0.hdf5")
    assert findings.ok
    assert rules(findings) == ["invalid_rows", "constant_dimension"]
    assert "1,126 of 136,950 rows" in findings.warnings[0].message
    assert findings.transitions is not None
    assert len(findings.transitions) == len(load_dataset(d4rl_dir / "kitchen-partial-v0.hdf5"))


def test_real_kitchen_rewards_are_recomputed(d4rl_dir: Path) -> None:
    source = load_steps(d4rl_dir / "kitchen-complete-v0.hdf5")
    assert rules(check(source.steps, source.task)) == ["constant_dimension"]
    for shift in (1, -1):
        late = replace(source.steps, rewards=np.roll(source.steps.rewards, shift))
        findings = check(late, source.task)
        assert [f.rule for f in findings.errors] == ["shifted_rewards"]
        assert ("too late" if shift == 1 else "too early") in findings.errors[0].message


def test_real_door_human_is_clean(d4rl_dir: Path) -> None:
    assert rules(validate_dataset(d4rl_dir / "door-human-v1.hdf5")[0]) == []
