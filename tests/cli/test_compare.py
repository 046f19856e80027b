"""`icql compare`: final scores of finished runs side by side."""

from __future__ import annotations

import json

import numpy as np
import pytest

import icql
import pendulum
from icql.bench.compared import report_of
from icql.cli import main


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    pendulum.register()
    data = pendulum.make_data(folder / "pendulum.npz", steps=400)
    small = {"policy.hidden": [8], "batch_size": 8}
    rest = {"dataset": str(data), "task": "pendulum-test", "settings": small, "quiet": True}
    icql.train("bc", steps=2, seeds=3, out=folder / "three", run={"episodes": 2}, **rest)
    icql.train("bc", steps=3, out=folder / "one", run={"episodes": 1}, **rest)
    icql.train("bc", steps=1, out=folder / "none", run={"episodes": 0}, **rest)
    icql.train("bc", steps=1, out=folder / "log", **{**rest, "task": None})
    grid = {"policy.learning_rate": [1e-3, 1e-2]}
    icql.train("bc", steps=2, seeds=2, grid=grid, out=folder / "grid", run={"episodes": 1}, **rest)
    return folder


def test_means_and_intervals_are_those_of_the_seeds(runs, capsys):
    assert main(["compare", str(runs / "three"), str(runs / "one"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    three, one = answer["runs"]
    scores = np.array(three["per_seed"])
    assert three["mean"] == pytest.approx(scores.mean())
    assert three["half"] == pytest.approx(4.3027 * scores.std(ddof=1) / np.sqrt(3), rel=1e-4)
    assert (three["seeds"], three["episodes"], three["updates"]) == (3, 2, 2)
    assert one["half"] is None
    assert answer["notes"] == [
        "the runs have different numbers of updates.",
        "the runs have different numbers of episodes.",
        "a single seed has no interval.",
    ]


def test_two_runs_of_one_method_are_named_by_their_folders(runs, capsys):
    assert main(["compare", str(runs / "three"), str(runs / "one"), "--json"]) == 0
    labels = [row["label"] for row in json.loads(capsys.readouterr().out)["runs"]]
    assert labels == [f"bc in {runs / 'three'}", f"bc in {runs / 'one'}"]
    assert main(["compare", str(runs / "grid"), "--json"]) == 0  # told apart by their settings
    labels = [row["label"] for row in json.loads(capsys.readouterr().out)["runs"]]
    assert len(set(labels)) == 2
    assert not any(" in " in label for label in labels)


def test_the_table_and_the_picture(runs, capsys, tmp_path):
    picture = tmp_path / "compare.png"
    assert main(["compare", str(runs / "three"), "--out", str(picture)]) == 0
    said = capsys.readouterr().out
    assert "pendulum-test: final scores, 2 episodes per seed" in said
    assert "bc" in said
    assert "mean of the data" in said
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_few_runs_get_the_report_of_a_suite(runs, capsys, tmp_path):
    chosen = [str(runs / "three"), str(runs / "one"), str(runs / "grid")]
    assert main(["compare", *chosen, "--out", str(tmp_path / "page.html"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["runs"]
    page = (tmp_path / "page.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    for row in told:
        assert f"{row['mean']:.1f}" in page
    assert main(["compare", *chosen, "--out", str(tmp_path / "table.md")]) == 0
    table = (tmp_path / "table.md").read_text()
    for name in ("bc in ", "three", "one", "bc policy.learning\\_rate=0.01"):
        assert name in table
    report = report_of([runs / "grid"])
    means = [np.mean(cell.scores) for cell in report.cells()]
    np.testing.assert_allclose(means, [row["mean"] for row in told[2:]])
    assert main(["compare", *chosen, "--out", str(tmp_path / "table.doc")]) == 2
    assert "must end in .png" in capsys.readouterr().err


def test_runs_with_critics_get_value_maps_in_the_page_alone(runs, capsys, tmp_path):
    data = runs / "pendulum.npz"
    icql.train(
        "iql",
        dataset=str(data),
        task="pendulum-test",
        steps=2,
        seeds=2,
        grid={"policy.learning_rate": [1e-3, 1e-2]},
        settings={"batch_size": 8, "policy.hidden": [8]},
        run={"episodes": 1},
        out=runs / "critics",
        quiet=True,
    )
    chosen, page = [str(runs / "critics"), str(runs / "one")], tmp_path / "page.html"
    assert main(["compare", *chosen, "--out", str(page)]) == 0
    assert "Value maps of pendulum-test" in page.read_text()
    report = report_of([runs / "critics", runs / "one"], maps=True)
    said = [cell.critics for cell in report.cells()]
    assert said[2] is None  # cloning has no critics
    assert [len(one["values"]) for one in said[:2]] == [300, 300]
    assert [len(one["rank"]) for one in said[:2]] == [2, 2]  # two seeds of each combination
    assert all(cell.critics is None for cell in report_of([runs / "critics"]).cells())
    data.rename(data.with_name("elsewhere.npz"))
    try:
        without = report_of([runs / "critics"], maps=True)
    finally:
        data.with_name("elsewhere.npz").rename(data)
    assert any("no value map of" in note for note in without.notes)
    assert all(cell.data is None for cell in without.cells())


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("none", "no episodes were played. Train with"),
        ("log", "no task to play. Compare by the log"),
        ("missing", "missing"),
    ],
)
def test_what_has_no_score_is_refused(runs, capsys, run, words):
    assert main(["compare", str(runs / run)]) == 2
    assert words in capsys.readouterr().err
