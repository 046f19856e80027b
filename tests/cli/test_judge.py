"""`icql judge` and `icql select`: a log and no simulator."""

from __future__ import annotations

import json
import shutil

import pytest

import chain
import icql
from icql.cli import main
from icql.data.formats.npz import write_npz
from icql.files import file_hash

SMALL = {"policy.hidden": [8], "batch_size": 32}
QUICK = ["--updates", "30", "--seeds", "2"]
KEYS = {"verdict", "estimate", "interval", "behaviour", "effective_sample_size", "reasons"}
VERDICTS = {"better", "not shown", "worse", "cannot be told"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_npz(folder / "chain.npz", chain.steps(episodes=40))
    write_npz(folder / "other.npz", chain.steps(episodes=40, seed=1))
    write_npz(folder / "single.npz", chain.steps(episodes=1, mean=-0.9))
    rest = {"steps": 20, "run": {"episodes": 0}, "quiet": True}
    data = str(folder / "chain.npz")
    icql.train("bc", dataset=data, out=folder / "one", seeds=2, settings=SMALL, **rest)
    icql.train(
        "bc",
        dataset=data,
        out=folder / "grid",
        settings=SMALL,
        grid={"policy.learning_rate": [1e-3, 1e-2]},
        **rest,
    )
    single = str(folder / "single.npz")
    icql.train("bc", dataset=single, out=folder / "single", settings=SMALL, **rest)
    return folder


def answer(capsys, *words: object) -> dict:
    assert main([*map(str, words), *QUICK, "--json"]) == 0
    found: dict = json.loads(capsys.readouterr().out)
    return found


def refused(capsys, *words: object) -> str:
    assert main([*map(str, words), *QUICK]) == 2
    return str(capsys.readouterr().err)


def test_judge_says_all_it_knows(runs, capsys):
    said = answer(capsys, "judge", runs / "one")
    assert set(said) >= KEYS
    assert said["verdict"] in VERDICTS
    assert said["interval"][0] < said["estimate"] < said["interval"][1]
    assert 1 <= said["effective_sample_size"] <= 40
    others = {"corrected", "importance", "doubly_robust", "local_critic"}
    assert set(said["methods"]) == {"fqe", *others}
    assert 0 <= said["held_out"]["outside"] <= 1
    assert len(said["methods"]["fqe"]["per_policy"]) == 2
    assert said["discount"] == 0.99
    assert said["seeds"] == [0, 1]
    assert said["far"]["policy"] is not None
    assert any("trained on all" in note for note in said["notes"])
    assert any("spread" in note for note in said["notes"])
    again = icql.judge(runs / "one", settings={"updates": 30, "seeds": 2}, quiet=True)
    assert again["interval"] == said["interval"]
    recorded = json.loads((runs / "one" / "judge.json").read_text())
    assert recorded["verdict"] == said["verdict"]
    assert recorded["policy_hash"] == file_hash(runs / "one" / "policy.safetensors")


def test_for_people_and_moved_data(runs, capsys, tmp_path):
    moved = shutil.copy(runs / "chain.npz", tmp_path / "elsewhere.npz")
    words = ["judge", str(runs / "one"), "--dataset", str(moved), "--no-graph", *QUICK]
    assert main([*words, "--discount", "0.9", "--against", str(runs / "one")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("verdict: ")
    assert "effective episodes" in said
    assert "by its errors on logged steps" in said
    assert "γ = 0.9" in said
    assert "local critic" not in said
    assert f"difference to {runs / 'one'} is +0," in said or "cannot be told" in said


def test_select_among_runs_and_combinations(runs, capsys):
    said = answer(capsys, "select", runs / "grid", runs / "one", "--no-graph")
    assert len(said["candidates"]) == 3
    assert all(set(one) >= KEYS for one in said["candidates"])
    assert isinstance(said["shown"], bool)
    able = [one for one in said["candidates"] if one["verdict"] != "cannot be told"]
    if able:
        best = max(able, key=lambda one: one["estimate"])
        assert said["winner"] == {"run": best["run"], "settings": best["settings"]}
    else:
        assert said["winner"] is None
    assert said["reasons"] or said["shown"]


def test_a_single_episode_cannot_be_told(runs, capsys):
    said = answer(capsys, "judge", runs / "single")
    assert said["verdict"] == "cannot be told"
    assert said["interval"] is None
    assert "a single episode" in said["reasons"][0]


def test_other_data_is_refused(runs, capsys):
    said = refused(capsys, "judge", runs / "one", "--dataset", runs / "other.npz")
    assert "other data" in said
    assert "other data" in refused(
        capsys, "judge", runs / "one", "--against", runs / "single", "--no-graph"
    )


def test_what_is_not_finished_is_refused(runs, capsys, tmp_path):
    unfinished = shutil.copytree(runs / "one", tmp_path / "unfinished")
    (unfinished / "policy.safetensors").unlink()
    assert "not finished" in refused(capsys, "judge", unfinished)
    assert "no such run folder" in refused(capsys, "judge", tmp_path / "nothing")


def test_a_grid_is_for_select(runs, capsys):
    assert "icql select" in refused(capsys, "judge", runs / "grid")
    assert "nothing to choose" in refused(capsys, "select", runs / "one")


def test_policies_with_memory_are_refused(runs, capsys, tmp_path):
    settings = {"batch_size": 4, "length": 3, "width": 8, "layers": 1, "heads": 1}
    icql.train(
        "dt",
        dataset=str(runs / "chain.npz"),
        out=tmp_path / "dt",
        steps=1,
        settings=settings,
        run={"episodes": 0},
        quiet=True,
    )
    assert "remembers its episode" in refused(capsys, "judge", tmp_path / "dt")


@pytest.mark.parametrize("option", [["--seeds", "1"], ["--updates", "0"], ["--held-out", "1"]])
def test_settings_that_make_no_sense(runs, capsys, option):
    assert main(["judge", str(runs / "one"), *option]) == 2
    assert "must be" in capsys.readouterr().err
