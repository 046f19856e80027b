"""Validation: every defect is caught at its row, clean data passes, the page tells it all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from icql.cli import data_validate
from icql.data import Steps, Task, get_task, load_dataset
from icql.data.npz import write_npz
from icql.data.pictures import return_to_go, state_map
from icql.data.report import write_report
from icql.data.sources import Source, load_steps
from icql.data.transitions import DataInfo
from icql.data.validation import Finding, Findings, validate, validate_dataset

RUNNER = Task("runner", "Hopper-v4", "mujoco", 0.0, 10.0, 60)


def clean(episodes: int = 30, *, successors: bool = True, seed: int = 0) -> Steps:
    """A runner in 4 dimensions, paid for its forward speed less the effort, ends of both kinds."""
    generator = np.random.default_rng(seed)
    observations, following, actions, rewards, ends = [], [], [], [], []
    for _ in range(episodes):
        length = int(generator.integers(20, 50))
        states = np.empty((length + 1, 4))
        states[0] = 5 + 0.05 * generator.normal(size=4)
        action = generator.uniform(-0.9, 0.9, (length, 2))
        for t in range(length):
            push = np.append(action[t], -action[t])
            states[t + 1] = 0.9 * states[t] + 0.5 * push + 0.1 * generator.normal(size=4)
        observations.append(states[:-1])
        following.append(states[1:])
        actions.append(action)
        rewards.append(states[1:, 0] - 0.1 * (action**2).sum(1))
        ends.append(np.arange(length) == length - 1)
    end = np.concatenate(ends)
    terminal = end & (np.cumsum(end) % 2 == 0)
    return Steps(
        np.concatenate(observations).astype(np.float32),
        np.concatenate(actions).astype(np.float32),
        np.concatenate(rewards).astype(np.float32),
        terminal,
        end & ~terminal,
        np.concatenate(following).astype(np.float32) if successors else None,
    )


def check(steps: Steps, task: Task | None = None) -> Findings:
    return validate(steps, name="log", source="log.npz", task=task)


def changed(steps: Steps, name: str, index: object, value: object) -> Steps:
    array = getattr(steps, name).copy()
    array[index] = value
    return replace(steps, **{name: array})


def rules(findings: Findings) -> list[str]:
    return [finding.rule for finding in (*findings.errors, *findings.warnings)]


CLEAN = clean()
PLAIN = clean(successors=False)
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
        RUNNER,
        ("warning", "actions_out_of_bounds", 21, "actions[1]"),
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


# --- command and page --------------------------------------------------------------------------


def broken_file(folder: Path) -> Path:
    path = folder / "log.npz"
    write_npz(path, PLAIN)
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    arrays["observations"][[3, 9], 1] = np.nan
    np.savez(path, **arrays)
    return path


def test_errors_leave_with_code_2_and_name_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = broken_file(tmp_path)
    with pytest.raises(SystemExit) as stop:
        data_validate.run([str(path), "--json"])
    assert stop.value.code == 2
    result = json.loads(capsys.readouterr().out)
    assert not result["ok"]
    assert result["transitions"] is None
    (error,) = result["errors"]
    assert error.keys() == {"rule", "file", "row", "column", "message"}
    assert (error["rule"], error["file"], error["row"], error["column"]) == (
        "non_finite",
        str(path),
        3,
        "observations[1]",
    )
    with pytest.raises(SystemExit):
        data_validate.run([str(path)])
    assert f"error non_finite: {path}, row 3, observations[1]: " in capsys.readouterr().out


def test_unreadable_data_is_an_error_of_the_same_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.hdf5"
    cut.write_bytes(b"\x89HDF\r\n\x1a\n")
    ragged = tmp_path / "flags.npz"
    write_npz(ragged, PLAIN)
    with np.load(ragged, allow_pickle=False) as file:
        arrays = {**file, "terminals": np.arange(len(PLAIN)) % 3}
    np.savez(ragged, **arrays)
    for path, row, column in ((cut, None, None), (ragged, 2, "terminals"), ("hoper", None, None)):
        with pytest.raises(SystemExit) as stop:
            data_validate.run([str(path), "--json", "--report", str(tmp_path / "page")])
        assert stop.value.code == 2
        (error,) = json.loads(capsys.readouterr().out)["errors"]
        assert (error["rule"], error["row"], error["column"]) == ("unreadable", row, column)
        assert "Not fit for training" in (tmp_path / "page" / "report.html").read_text()


def test_a_gap_in_a_csv_log_is_named_by_its_column(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = "".join(f"0,{t},{t % 3},{'nan' if t == 5 else t},0.5,1\n" for t in range(9))
    path.write_text("run,t,angle,speed,push,gain\n" + rows)
    path.with_suffix(".csv.toml").write_text(
        'observation = ["angle", "speed"]\naction = ["push"]\nreward = "gain"\n'
        'episode = "run"\ntime = "t"\n'
    )
    findings, source = validate_dataset(path)
    (error,) = findings.errors
    assert (error.rule, error.file, error.row, error.column) == (
        "non_finite",
        str(path),
        5,
        "speed",
    )
    assert source is None


def test_command_on_good_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.npz"
    write_npz(path, CLEAN)
    result = data_validate.run([str(path), "--json", "--report", str(tmp_path / "page")])
    assert result is not None
    assert (result["ok"], result["errors"], result["warnings"]) == (True, [], [])
    page = Path(result["report"]).read_text()
    assert page.count('src="data:image/png;base64,') == 4
    assert len(list((tmp_path / "page").iterdir())) == 1  # one file, nothing half-written
    assert data_validate.run([str(path)]) is None
    assert capsys.readouterr().out.startswith("ok: ")


def test_page_needs_nothing_from_outside_and_escapes_names(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>'
    finding = Finding(evil, evil, 3, evil, evil)
    source = Source(CLEAN, DataInfo(evil, source=evil), get_task("hopper-mini"))
    findings = replace(check(CLEAN), warnings=(finding,))
    page = write_report(tmp_path, evil, findings, source).read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"(https?:)?//\w", re.sub(r"base64,[^\"]*", "", page))
    assert 'name="viewport"' in page


def test_return_to_go_equals_the_plain_sum() -> None:
    rewards = np.arange(7, dtype=np.float32)
    episode = np.array([0, 0, 0, 4, 5, 5, 5])
    expected = [0 + 0.5 + 0.5, 1 + 1, 2, 3, 4 + 2.5 + 1.5, 5 + 3, 6]
    assert_allclose(return_to_go(rewards, episode, discount=0.5), expected)


def test_state_map_keeps_the_widest_directions() -> None:
    generator = np.random.default_rng(5)
    common = generator.normal(size=(400, 1))
    states = np.concatenate([common, common + 0.1 * generator.normal(size=(400, 1))], axis=1)
    states = np.concatenate([states, np.full((400, 1), 7.0)], axis=1)
    plane = state_map(states)
    assert plane.shape == (400, 2)
    assert plane[:, 0].std() > 5 * plane[:, 1].std()
    assert state_map(states[:, :1]).shape == (400, 2)
