"""Suites and published numbers as data: they fit the code, and the paper's own averages."""

from __future__ import annotations

import json

import numpy as np
import pytest

from icql.algos.presets import resolve_preset
from icql.bench.published import citations, published, remarks
from icql.bench.suites import suites
from icql.cli import main
from icql.cli.main import COMMANDS, Group
from icql.data.tasks import get_task
from icql.settings.change import override

TABLES = [suite for suite in suites().values() if not suite.command]
MUJOCO, ADROIT = suites()["layers"].tasks, suites()["td3bc"].tasks[9:]
KITCHEN = suites()["main"].tasks[15:]


@pytest.mark.parametrize("suite", TABLES, ids=lambda suite: suite.id)
def test_every_row_has_its_settings_on_every_task(suite):
    assert len({row.id for row in suite.rows}) == len(suite.rows)
    for row in suite.rows:
        for task in suite.tasks:
            get_task(task)
            override(resolve_preset(row.algo, suite.preset, task).settings, row.settings)


def test_suites_that_vary_a_number_do():
    varied = {suite.id: suite for suite in TABLES if suite.vary}
    assert varied.keys() == {"layers", "context"}
    for suite in varied.values():
        values = [row.settings[suite.vary] for row in suite.rows]
        assert values == sorted(set(values))


def test_the_suites_of_the_paper_are_there():
    labels = " ".join(suite.paper for suite in suites().values())
    for label in (
        *("main_results", "main_results_new", "extra_td3bc", "retri_compare", "compare_tfs"),
        *("ctxlen_layer", "all_time_flop_mem", "gflops_ctxlen_nlayer", "retrieval_time_all"),
    ):
        assert f"tab:{label}" in labels


def test_suites_that_are_commands_name_real_ones():
    for suite in suites().values():
        if suite.command:
            _, first, second, *_ = suite.command.split()
            named = COMMANDS[first]
            assert not isinstance(named, Group) or second in named.commands


# the averages that the paper prints, over its own cells
MAIN = ("bc", "dt", "td3bc", "cql", "iql", "icql")
PRINTED = [
    ("main", MUJOCO, MAIN, (51.9, 58.8, 62.9, 74.0, 72.4, 80.6)),
    ("main", ADROIT, MAIN, (17.45, 27.9, 24.2, 15.5, 33.2, 35.3)),
    ("main", KITCHEN, MAIN, (51.5, 55.8, 52.6, 48.2, 52.8, 66.8)),
    ("td3bc", MUJOCO, ("td3bc", "icql-td3bc"), (62.9, 66.7)),
    ("td3bc", ADROIT, ("td3bc", "icql-td3bc"), (24.2, 25.6)),
    ("context", MUJOCO, [f"context-{k}" for k in (10, 20, 30, 40)], (79.4, 80.6, 75.4, 76.2)),
    ("layers", MUJOCO, [f"layers-{k}" for k in (4, 8, 16, 20)], (76.4, 76.4, 76.0, 80.6)),
]


@pytest.mark.parametrize(("suite", "tasks", "rows", "printed"), PRINTED)
def test_the_papers_numbers_have_its_averages(suite, tasks, rows, printed):
    for row, average in zip(rows, printed, strict=True):
        numbers = [published(suite, row, task)[0] for task in tasks]
        assert {n.source for n in numbers} == {"ICQL paper"}
        assert np.mean([n.mean for n in numbers]) == pytest.approx(average, abs=0.11)


@pytest.mark.parametrize("suite", [s for s in TABLES if s.paper], ids=lambda suite: suite.id)
def test_every_cell_of_a_papers_suite_has_its_number(suite):
    for row in suite.rows:
        for task in suite.tasks:
            assert published(suite.id, row.id, task)[0].source == "ICQL paper"


def test_other_sources_and_kinds():
    numbers = {n.source: n for n in published("main", "iql", "hopper-medium-v2")}
    assert (numbers["CORL"].mean, numbers["CORL"].std, numbers["CORL"].seeds) == (67.53, 3.78, 4)
    assert numbers["JAX-CORL"].mean == 56.78
    means = {n.source: n.mean for n in published("main", "iql", "kitchen-partial-v0")}
    assert means == {"ICQL paper": 45.8, "harness-offline-rl": 47.7, "IQL paper": 46.3}
    kinds = {
        ("main", "bc", "hopper-medium-v2"): "quoted",
        ("main", "cql", "hopper-medium-v2"): "run",
        ("main", "cql", "door-human-v1"): "quoted",
        ("main", "cql", "door-cloned-v1"): "run",
        ("main", "dt", "kitchen-mixed-v0"): "single seed",
        ("extended", "qc", "kitchen-partial-v0"): "single seed",
        ("extended", "icql", "kitchen-partial-v0"): "run",
    }
    assert {key: published(*key)[0].kind for key in kinds} == kinds
    cells = {"cql": ("kitchen-partial-v0", "door-cloned-v1"), "bc": ("walker2d-medium-v2",)}
    survey = {
        (row, task): [
            (n.mean, n.kind) for n in published("main", row, task) if n.source == "Survey"
        ]
        for row, tasks in cells.items()
        for task in tasks
    }
    assert survey == {
        ("cql", "kitchen-partial-v0"): [(49.8, "quoted")],
        ("cql", "door-cloned-v1"): [],  # where the paper's own number is another one
        ("bc", "walker2d-medium-v2"): [(75.3, "quoted")],
    }


def test_what_is_called_single_seed_could_be_one():
    """One seed × 10 episodes × 4 subtasks gives multiples of 2.5; runs over 5 seeds rarely do."""
    single = [
        number.mean
        for suite in TABLES
        for row in suite.rows
        for task in suite.tasks
        for number in published(suite.id, row.id, task)
        if number.kind == "single seed"
    ]
    assert len(single) == 3 + 4 * 3
    assert all(mean % 2.5 == 0 for mean in single)


def test_remarks_and_citations():
    assert published("main", "bc", "hopper-mini") == ()
    assert all(citations().values())
    assert len(remarks("main", ["ICQL paper"])) == 1
    assert remarks("main", []) == ()


def test_the_list(capsys):
    assert main(["bench", "list"]) == 0
    text = capsys.readouterr().out
    assert "icql bench cost" in text
    assert main(["bench", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["suites"]
    assert [one["suite"] for one in listed] == list(suites())
    (main_table,) = [one for one in listed if one["suite"] == "main"]
    assert len(main_table["tasks"]) == 18
    assert main_table["rows"][0] == {"id": "bc", "name": "BC", "algo": "bc", "settings": {}}
