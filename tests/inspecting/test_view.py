"""What the page is told is what critics, policies and alarms say."""

from __future__ import annotations

import numpy as np
import pytest

import icql
from icql.errors import UserError
from icql.inspecting.choice import EpisodeList, spread
from icql.inspecting.view import View
from icql.progress import Display
from inspecting.made import COLUMNS, LENGTH, train, write_log


def view_of(*runs, dataset=None) -> View:
    return View(runs, dataset=dataset, rate=0.05, display=Display(quiet=True))


@pytest.mark.parametrize("algo", ["icql", "icql-graph"])
def test_evidence_is_the_critics(runs, algo):
    view = view_of(runs[algo])
    critic, policy = icql.load_critic(runs[algo]), icql.load_policy(runs[algo])
    rows = np.array([3, 77, 200])
    states = np.asarray(view.data.states[rows])
    shared, own = view.details(states, rows)
    chosen = policy.act(states, normalised=True)
    why = critic.evidence(states, chosen)
    np.testing.assert_array_equal(own["near"], why.rows[:, :20])
    np.testing.assert_allclose(own["near_part"], why.influence[:, :20])
    np.testing.assert_allclose(
        own["prior"] + own["near_part"].sum(1) + own["rest_part"], own["value"], rtol=1e-9
    )
    np.testing.assert_allclose(own["value_rank"], why.rank)
    assert own["counts"].sum(1).tolist() == [why.rows.shape[1]] * 3
    also = critic.evidence(states, view.data.actions[rows])
    np.testing.assert_allclose(own["logged_value"], also.value)
    for i in range(3):  # the same rows, in the order of the policy's parts
        of = dict(zip(also.rows[i].tolist(), also.influence[i].tolist(), strict=True))
        told = [of[row] for row in own["near"][i].tolist()]
        np.testing.assert_allclose(own["near_logged_part"][i], told)
    np.testing.assert_allclose(own["action"], policy.act(states), rtol=1e-5)
    assert 40 <= own["action"][0, 0] <= 90
    np.testing.assert_allclose(shared["logged"], policy.signals.in_units(view.data.actions[rows]))
    assert ("trace" in own) == (algo == "icql")
    columns = view.runs[0].columns(rows)
    np.testing.assert_allclose(columns["value"], own["value"], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(columns["advantage"], columns["logged_value"] - columns["value"])


@pytest.mark.parametrize(("algo", "values"), [("bc", False), ("iql", True)])
def test_runs_without_evidence_show_neighbours_policy_and_alarm(runs, algo, values):
    view = view_of(runs[algo])
    rows = np.array([5, 100])
    _, own = view.details(np.asarray(view.data.states[rows]), rows)
    assert ("value" in own) is values
    assert "near_part" not in own
    assert own["near"].shape == (2, 20)
    episode = np.asarray(view.data.episode)
    assert (episode[own["near"]] != episode[rows][:, None]).all()
    about = view.head()["runs"][0]
    assert about["limit"] > 0
    assert len(about["notes"]) >= 1


def test_the_alarm_of_a_logged_state_is_about_other_episodes(runs):
    view = view_of(runs["bc"])
    data, subject = view.data, view.runs[0]
    rows = np.arange(0, len(data), 7)
    far = subject.columns(rows)["far"]
    assert (far > 0).all()
    assert (far > subject.alarm.limit).mean() == pytest.approx(0.05, abs=0.06)
    away = view.state(np.full((1, 3), 50, np.float32))["runs"][0]
    assert away["far"][0] > subject.alarm.limit
    assert view.state(np.asarray(data.states[:1]))["runs"][0]["far"][0] == pytest.approx(0)


def test_an_episode_in_time(runs):
    view = view_of(runs["icql-graph"])
    one = view.episode(4)
    assert (one["episode"], one["length"]) == (4, LENGTH - 1)  # the last step has no successor
    assert one["series"]["step"].tolist() == list(range(LENGTH - 1))
    assert len(one["runs"][0]["advantage"]) == LENGTH - 1
    assert one["return"] == pytest.approx(view.data.info.episode_returns[4])
    assert view.episodes.rows(4, 5).tolist() == [76, 80, 85, 89, 94]
    assert [c["name"] for c in view.head()["columns"]] == list(COLUMNS)


def test_any_member_is_shown(log, tmp_path):
    out = train("icql", log, tmp_path / "two", seeds=2)
    policy, critic = icql.load_policy(out), icql.load_critic(out)
    rows = np.array([3, 77])
    for member in (0, 1):
        view = View([out], dataset=None, rate=0.05, display=Display(quiet=True), member=member)
        states = np.asarray(view.data.states[rows])
        _, own = view.details(states, rows)
        np.testing.assert_allclose(own["action"], policy.act(states, seed=member), rtol=1e-5)
        chosen = policy.act(states, normalised=True, seed=member)
        why = critic.evidence(states, chosen, seed=member)
        np.testing.assert_allclose(own["value"], why.value)
        np.testing.assert_allclose(
            own["trace"], critic.trace(states, chosen, seed=member).T, rtol=1e-4, atol=1e-6
        )
        assert f"seed {member}" in view.head()["runs"][0]["notes"][0]
    with pytest.raises(UserError, match=r"no member 2; there are 0: seed 0; 1: seed 1"):
        View([out], dataset=None, rate=0.05, display=Display(quiet=True), member=2)


def test_two_runs_need_the_same_data(runs, tmp_path):
    both = view_of(runs["icql"], runs["bc"])
    assert len(both.row(3)["runs"]) == 2
    other = train("bc", write_log(tmp_path / "other.csv", seed=1), tmp_path / "other")
    with pytest.raises(UserError, match="made on other data than"):
        view_of(runs["icql"], other)


def test_a_sample_covers_the_map():
    rng = np.random.default_rng(0)
    plane = np.concatenate([rng.normal(0, 0.01, (5000, 2)), rng.uniform(-1, 1, (100, 2))])
    chosen = spread(plane, 200)
    assert len(np.unique(chosen)) == 200
    assert (chosen >= 5000).sum() > 60  # few states, far from the crowd: most are there
    assert spread(plane[:10], 20).tolist() == list(range(10))


def test_episodes_from_the_worst_to_the_best_paid():
    count = 50
    ids = np.arange(count)
    every = EpisodeList(ids, ids * 10, np.full(count, 10), np.random.default_rng(0).normal(size=50))
    some = every.some(8, 45)
    assert len(some) == 4  # rows of ten each
    assert {int(every.paid.argmin()), int(every.paid.argmax())} <= set(some.tolist())
