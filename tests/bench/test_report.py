"""The report: whole, small, offline, escaped, sorted; verdicts by arithmetic of another hand."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats

import browser
from icql.bench.analyses import critic_analysis_path
from icql.bench.costs import costs
from icql.bench.records import Asked, BenchFolder, CellGroup
from icql.bench.report import Report, gather, write_report
from icql.bench.svg import LEVELS, dot_map, ticks
from icql.bench.tables import TableCell
from icql.cli import main
from icql.seals import write_sealed

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "report_speed.py"
VOID = {"meta", "br", "line", "circle", "rect", "polyline", "path"}  # of what the page uses
NASTY = "<script>alert('x')</script> & \"quotes\""


def made_up() -> ModuleType:
    spec = importlib.util.spec_from_file_location("report_speed", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["report_speed"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Page(HTMLParser):
    """Checks that elements are closed in order; collects them, their attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID or tag in ("polyline", "circle"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        if self.open[-1] != tag and self.open[-1] in VOID:
            self.open.pop()
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> BenchFolder:
    return made_up().made_up_folder(tmp_path_factory.mktemp("large") / "bench", seeds=10)


@pytest.fixture(scope="module")
def report(large: BenchFolder) -> Report:
    return gather(large)


@pytest.fixture(scope="module")
def html(report: Report, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(report, path)
    assert path.stat().st_size < 5e6
    return path.read_text()


def test_two_thousand_cells_make_one_whole_page(report, html):
    assert report.counts()["cells"] >= 2000
    page = Page(html)
    assert page.count("html") == page.count("body") == page.count("script") == 1
    curves, neighbours, layers = 18 + 12, 18 + 12, 18 + 12
    maps = 18 * (1 + 8) + 12 * (1 + 3)  # outcomes, and the methods with critics
    assert page.count("svg") == curves + neighbours + layers + maps + 2 * 2  # IQM and profile too
    assert page.count("table") == 2 * 2 + 2  # scores and improvement of each, misses, cost
    viewport = [attrs for tag, attrs in page.tags if attrs.get("name") == "viewport"]
    assert viewport
    assert "prefers-color-scheme:dark" in html


def test_nothing_comes_from_elsewhere(html):
    page = Page(html)
    for _, attrs in page.tags:
        assert not {"src", "srcset", "data", "xlink:href"} & attrs.keys()
        assert str(attrs.get("href", "#")).startswith("#")
    for word in ("@import", "url(", "http://", "https://", "fetch(", "XMLHttp"):
        assert word not in html
    anchors = {attrs["href"] for tag, attrs in page.tags if tag == "a"}
    ids = {f"#{attrs['id']}" for _, attrs in page.tags if "id" in attrs}
    assert anchors <= ids


def test_captions_say_seeds_and_episodes(report, html):
    for table in report.tables:
        assert "10 seeds × 10" in table.caption
    captions = html.split('<p class="caption">')[1:]
    assert sum("10 seeds × 10" in part.partition("</p>")[0] for part in captions) == 4


def test_verdicts_and_misses_by_scipy(report):
    (table,) = [t for t in report.tables if t.suite.id == "extended"]
    seen, below = set(), 0
    for cell in table.cells.values():
        n = len(cell.scores)
        low, high = stats.t.interval(0.95, n - 1, np.mean(cell.scores), stats.sem(cell.scores))
        number, verdict = cell.verdicts[0]
        inside = "reproduced" if high - low <= 20 else "unclear"
        right = inside if low <= number.mean <= high else "above" if low > number.mean else "below"
        assert cell.verdict == verdict == right
        seen.add(verdict)
        below += verdict == "below"
    assert seen == {"reproduced", "above", "below"}
    assert len([cell for cell, _ in report.misses() if cell.place.suite == "extended"]) == below


def test_numbers_that_were_not_run_over_seeds_are_marked_as_such(report, html, tmp_path):
    """BC's is quoted, QC's on Kitchen a single seed's: every format says so, and what it means."""
    texts = {"html": html}
    for ending in ("md", "tex"):
        write_report(report, tmp_path / f"report.{ending}")
        texts[ending] = (tmp_path / f"report.{ending}").read_text()
    assert "ICQL paper 65.0, quoted" in texts["html"]
    assert "ICQL paper 65.0 (quoted)" in texts["md"]
    assert "(65.0, quoted, " in texts["tex"]
    assert "(27.5, single seed, " in texts["tex"]
    for text in texts.values():
        assert "taken over and not run" in text
        assert "what one seed of 10 episodes gives" in text


def judged(cell: TableCell, *scores: float, **group: object) -> str:
    """The verdict about other scores of the cell, one for each seed."""
    records = tuple(
        {**record, "outcome": {**record["outcome"], "score": score}}
        for record, score in zip(cell.records, scores, strict=False)
    )
    other = dataclasses.replace(cell.group, **group)
    return dataclasses.replace(cell, group=other, records=records).verdict


def test_a_verdict_is_no_kinder_than_the_runs_allow(report):
    """Too wide an interval reproduces nothing; other data or settings are not compared at all."""
    (cell,) = [
        c for c in report.cells() if (c.place.row, c.place.task) == ("iql", "hopper-medium-v2")
    ]
    centre = cell.published[0].mean
    near = (centre - 1, centre, centre + 1)
    assert judged(cell, *near) == "reproduced"
    assert judged(cell, centre - 30, centre, centre + 30) == "unclear"
    assert judged(cell, *(x + 20 for x in near)) == "above"
    assert judged(cell, *(x - 20 for x in near)) == "below"
    assert judged(cell, centre) == "no interval"
    assert judged(cell, *near, preset="quick") == "other settings"
    assert judged(cell, *near, dataset="logs/mine.npz") == "other data"
    assert judged(cell, *near, dataset="elsewhere/hopper_medium-v2.hdf5") == "reproduced"
    fewer = {**cell.group.run, "steps": 999}
    assert judged(cell, *near, run=fewer) == "short"
    assert dataclasses.replace(cell, published=()).verdict == "no published number"


def test_cost_is_in_hours_of_the_device_beside_the_papers(tmp_path):
    """By hand: 100 s for 3 seeds of each cell, the paper's 10.52 ms × 1,000,000 × 3 seeds …"""
    folder = made_up().made_up_folder(tmp_path / "b", suites=("main",), seeds=3)
    report = gather(folder)
    (table,) = report.tables
    (cost,) = costs(table)
    assert cost.unit == "GPU-hours"
    assert cost.cells == 6 * 18
    assert cost.measured == cost.full == pytest.approx(6 * 18 * 100 / 3600)
    times = {"dt": 68.42 * 0.1, "td3bc": 7.23, "cql": 47.57, "iql": 10.52, "icql": 70.73}
    hours = sum(times.values()) * 1e6 / 1000 / 3600  # of one seed on one task; TD3+BC: 2 × 500,000
    assert cost.paper == pytest.approx(hours * 3 * 18)
    assert cost.paper_whole == pytest.approx(hours * 5 * 18)
    assert cost.whole == pytest.approx(6 * 18 * 5 * 100 / 3 / 3600)
    assert cost.untimed == ()
    twice = folder.groups()[0][0]  # in a second row, as what the data decides is
    place = dataclasses.replace(twice.asked[0], row="auto", name="our default")
    folder.ask(dataclasses.replace(twice, asked=(place,)))
    (again,) = costs(gather(folder).tables[0])
    assert (again.cells, again.measured) == (cost.cells, pytest.approx(cost.measured))
    without = made_up().made_up_folder(tmp_path / "w", suites=("main",), seeds=3)
    for group in without.groups()[0]:
        if group.algo == "cql":
            for seed in group.seeds:
                without.record_path(group.cell_key(seed)).unlink()
    (part,) = costs(gather(without).tables[0])
    assert part.whole == pytest.approx(5 * 18 * 5 * 100 / 3 / 3600)
    assert part.paper_whole == pytest.approx((hours - 47.57 / 3.6) * 5 * 18)
    assert part.untimed == ("CQL",)
    assert "of BC; DT; TD3+BC; IQL; ICQL alone (no other was timed" in part.said("Main table")
    rowless = dataclasses.replace(table, suite=dataclasses.replace(table.suite, rows=()))
    (added,) = costs(rowless)  # every method was added to the table
    assert "whole table" not in added.said("Main table")
    for group in folder.groups()[0][::2]:  # half of the cells were made on a CPU
        for seed in group.seeds:
            record = folder.record(group, seed)
            assert record is not None
            run = {**record["run"], "versions": {"device": "cpu: cpu"}}
            folder.write_record(group, seed, {"outcome": record["outcome"], "run": run})
    mixed = costs(gather(folder).tables[0])
    assert [(one.unit, one.name) for one in mixed] == [
        ("CPU-hours", "cpu"),
        ("GPU-hours", "made-up"),
    ]
    assert sum(one.measured for one in mixed) == pytest.approx(cost.measured)
    for suffix in (".html", ".md"):
        write_report(gather(folder), tmp_path / f"r{suffix}")
        text = unescape((tmp_path / f"r{suffix}").read_text())
        assert all(one.said("Main table") in text for one in mixed)
    assert main(["bench", "status", str(folder.path)]) == 0


def test_the_status_tells_a_method_of_two_suites_apart_and_is_in_order(tmp_path, capsys):
    folder = made_up().made_up_folder(tmp_path / "b", suites=("td3bc", "extended"), seeds=1)
    assert main(["bench", "status", str(folder.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = [line.split("seeds  ")[1] for line in lines if "seeds  " in line]
    assert "extended: IQL on door-human-v1" in said
    assert "td3bc: ICQL-TD3+BC on door-human-v1" in said
    assert len(set(said)) == len(said)
    assert [one.partition(":")[0] for one in said] == sorted(one.partition(":")[0] for one in said)


def test_what_was_analysed_is_drawn(tmp_path):
    """Damaged and failed analyses are left out, and a failed one is said."""
    folder = made_up().made_up_folder(tmp_path / "b", suites=("td3bc",), seeds=2)
    first, second, *_ = (group for group in folder.groups()[0] if group.algo == "icql-td3bc")
    write_sealed(critic_analysis_path(folder, first), {"error": "no memory"})
    critic_analysis_path(folder, second).write_text("{")
    report = gather(folder)
    assert any("could not be analysed: no memory" in note for note in report.notes)
    write_report(report, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    page = Page(text)
    maps = [attrs for tag, attrs in page.tags if tag == "g" and attrs.get("class") == "dots"]
    assert len(maps) == 15 + 2 * 15 - 2  # outcomes, and two methods on 15 tasks
    labels = [str(attrs["aria-label"]) for tag, attrs in page.tags if tag == "svg"]
    assert sum(label.startswith("Q̂ by layer on") for label in labels) == 15 - 2
    assert sum(label.startswith("Neighbours on") for label in labels) == 15
    assert text.count("raw columns, spread of actions 0.36 (0.12 of it lasts)") == 15


def test_a_map_has_every_dot_and_its_colours_follow_the_values():
    drawn = dot_map([(0, 0), (1, 1), (2, 0)], [5.0, 7.0, 6.0], title="x", size=100)
    low, high = f'<path d="M5 95h0" stroke="{LEVELS[0]}"/>', f'd="M50 5h0" stroke="{LEVELS[-1]}"'
    assert low in drawn
    assert high in drawn
    assert drawn.count("h0") == 3
    assert dot_map([(0, 0)], [1.0], title="one").count("h0") == 1
    assert dot_map([], [], title="none") == ""


def test_aggregates_are_over_the_tasks_of_all(tmp_path):
    folder = made_up().made_up_folder(tmp_path / "bench", suites=("td3bc",), seeds=3)
    groups, _ = folder.groups()
    gone = next(g for g in groups if g.task == "pen-human-v1" and g.algo == "td3bc")
    for seed in gone.seeds:
        folder.record_path(gone.cell_key(seed)).unlink()
    report = gather(folder)
    (table,) = report.tables
    assert len(table.common) == 14
    assert "pen-human-v1" not in table.common
    assert any("pen-human-v1" in note for note in report.notes)
    assert report.unfinished == (("TD3+BC on pen-human-v1", 0, 3),)
    scores = [table.cells["icql-td3bc", task].scores for task in table.common]
    assert table.iqm["icql-td3bc"]["value"] == pytest.approx(
        stats.trim_mean(np.ravel(scores), 0.25)
    )
    assert table.mean_of("icql-td3bc") == pytest.approx(np.mean(scores))
    thirteen = [109.2, 77.0, 41.5, 78.2, 53.5, 59.4, 62.8, 43.1, 41.8, 76.8, 1.5, 1.8, 0.2, -0.1]
    assert table.published_mean("td3bc") == pytest.approx(np.mean(thirteen))


def test_aggregates_are_of_as_many_methods_and_tasks_as_leave_no_gap(tmp_path):
    """One method is for some tasks and another for the rest: the one with more tasks stays."""
    folder = made_up().made_up_folder(tmp_path / "bench", suites=("main",), seeds=2)
    groups, _ = folder.groups()
    for group in groups:
        kitchen = group.task.startswith("kitchen")
        if (group.algo == "bc" and kitchen) or (group.algo == "dt" and not kitchen):
            for seed in group.seeds:
                folder.record_path(group.cell_key(seed)).unlink()
    report = gather(folder)
    (table,) = report.tables
    assert set(table.iqm) == {"bc", "td3bc", "cql", "iql", "icql"}
    assert len(table.common) == 15
    kitchens = "kitchen-complete-v0, kitchen-mixed-v0, kitchen-partial-v0"
    assert f"main: aggregates are without {kitchens}, DT." in report.notes
    assert ("bc", "dt") not in table.improvement
    above = [
        np.mean([(x > y) + (x == y) / 2 for x in ours for y in table.scored["iql"][task]])
        for task, ours in table.scored["dt"].items()
    ]
    assert len(above) == 3
    assert table.improvement["dt", "iql"]["value"] == pytest.approx(np.mean(above))
    write_report(report, tmp_path / "r.md")
    assert (
        f"| DT | – | – | {1 - table.improvement['td3bc', 'dt']['value']:.2f} |"
        in (tmp_path / "r.md").read_text()
    )


def test_short_cells_are_in_no_statistics_beside_full_ones(tmp_path):
    folder = made_up().made_up_folder(tmp_path / "bench", suites=("td3bc",), seeds=3)
    of_page = gather(folder).tables[0]
    assert not of_page.left_short
    assert "short" not in of_page.over
    table = shortened(of_page, row="td3bc", tasks=of_page.tasks[:5])
    assert table.left_short
    assert list(table.scored["td3bc"]) == list(of_page.tasks[5:])
    assert table.common == list(of_page.tasks[5:])
    assert table.over == "10 common tasks, without short runs"
    steps = table.cells["icql-td3bc", table.tasks[0]].steps
    assert table.sizes.endswith(f"{steps // 2:,} to {steps:,} updates.")
    assert table.counted_sizes.endswith(f"episodes, {steps:,} updates.")
    alike = shortened(of_page, row="td3bc", tasks=of_page.tasks)
    assert "td3bc" not in alike.iqm
    assert ("td3bc", "icql-td3bc") not in alike.improvement
    every = shortened(alike, row="icql-td3bc", tasks=of_page.tasks)
    assert every.scored == of_page.scored  # all are short: then these are what there is


def shortened(table, *, row, tasks):
    """The same table, had these cells been given half of the updates."""
    cells = dict(table.cells)
    for task in tasks:
        cell = cells[row, task]
        run = cell.group.run | {"steps": cell.place.full_steps // 2}
        group = dataclasses.replace(cell.group, run=run)
        cells[row, task] = dataclasses.replace(cell, group=group)
    return dataclasses.replace(table, cells=cells)


def test_a_page_of_our_own_table_says_no_more_than_there_is(tmp_path):
    """No verdict where nothing could have been published, no curve through a single point."""
    folder = made_up().made_up_folder(tmp_path / "bench", suites=("robust",), seeds=2)
    write_report(gather(folder), tmp_path / "several.html")
    several = (tmp_path / "several.html").read_text()
    assert ">no published number</span>" not in several
    assert "Learning curves" in several
    for group in folder.groups()[0]:
        for seed in group.seeds:
            record = folder.record(group, seed)
            assert record is not None
            outcome = {**record["outcome"], "curve": record["outcome"]["curve"][-1:]}
            folder.write_record(group, seed, {"outcome": outcome, "run": record["run"]})
    write_report(gather(folder), tmp_path / "one.html")
    assert "Learning curves" not in (tmp_path / "one.html").read_text()


def test_short_rows_are_marked_and_have_no_verdict(tmp_path):
    folder = made_up().made_up_folder(tmp_path / "b", suites=("td3bc",), seeds=2, steps=1000)
    report = gather(folder)
    assert all(v == "short" for cell in report.cells() for _, v in cell.verdicts)
    assert report.misses() == []
    for suffix, mark in ((".html", ">short</span>"), (".md", "1,000, short"), (".tex", "*: short")):
        write_report(report, tmp_path / f"r{suffix}")
        assert mark in (tmp_path / f"r{suffix}").read_text()


def test_of_two_lengths_the_longer_one_stands_and_the_other_is_named(tmp_path):
    make = made_up().made_up_folder
    make(tmp_path / "b", suites=("td3bc",), seeds=2, steps=1000)
    report = gather(make(tmp_path / "b", suites=("td3bc",), seeds=2))
    assert not any(cell.short for cell in report.cells())
    assert len(report.superseded) == 30
    assert any(
        line.startswith("TD3+BC on hopper-medium-v2, 1,000 updates") for line in report.superseded
    )


def test_of_two_groups_of_one_length_the_newer_one_stands(tmp_path):
    folder = made_up().made_up_folder(tmp_path / "b", suites=("td3bc",), seeds=2)
    (old, *_) = folder.groups()[0]
    new = dataclasses.replace(old, data_hash="1" * 64, seeds=(0,))
    folder.ask(new)
    record = folder.record(old, 0)
    assert record is not None
    later = {"run": {**record["run"], "time": "2026-01-02T00:00:00Z"}}
    folder.write_record(new, 0, {"outcome": record["outcome"]} | later)
    report = gather(folder)
    place = old.asked[0]
    (cell,) = [c for c in report.cells() if (c.place.row, c.place.task) == (place.row, place.task)]
    assert cell.group.key == new.key
    assert len(report.superseded) == 1
    assert old.key[:8] in report.superseded[0]
    assert f"td3bc: its cells of {place.task} have different data." in report.notes


def test_one_set_under_two_names_is_said(tmp_path):
    folder = made_up().made_up_folder(tmp_path / "b", suites=("td3bc",), seeds=2)
    assert not any("one set of data" in note for note in gather(folder).notes)
    (one, *_) = folder.groups()[0]
    place = one.asked[0]
    again = dataclasses.replace(place, task=f"{place.task}@again")
    folder.ask(dataclasses.replace(one, asked=(again,)))
    said = f"{place.task} and {again.task} are one set of data, which counts once for each name"
    assert f"td3bc: {said} in its aggregates." in gather(folder).notes


def test_a_suite_that_varies_a_number_is_drawn_against_it(tmp_path):
    report = gather(made_up().made_up_folder(tmp_path / "b", suites=("context",), seeds=2))
    write_report(report, tmp_path / "r.html")
    page = Page((tmp_path / "r.html").read_text())
    (place,) = [
        i for i, (_, a) in enumerate(page.tags) if a.get("aria-label") == "Scores by context.k"
    ]
    drawn = [attrs for tag, attrs in page.tags[place:] if tag == "polyline"][:18]
    assert sum("stroke-dasharray" in attrs for attrs in drawn) == 9  # one published line per task
    assert all(len(str(attrs["points"]).split()) == 4 for attrs in drawn)


def test_a_single_seed_has_no_interval_and_no_verdict(tmp_path):
    report = gather(made_up().made_up_folder(tmp_path / "b", suites=("td3bc",), seeds=1))
    assert all(v == "no interval" for cell in report.cells() for _, v in cell.verdicts)
    assert any("single seed" in note for note in report.notes)
    write_report(report, tmp_path / "r.html")
    Page((tmp_path / "r.html").read_text())


@pytest.fixture
def nasty(tmp_path: Path) -> BenchFolder:
    """A folder whose every word is an attack: one finished cell without a score, one failure."""
    folder = BenchFolder.make(tmp_path / "bench")
    for seeds, name in (((0,), NASTY), ((1, 2), f"{NASTY} two")):
        group = CellGroup(
            algo=NASTY,
            task=NASTY,
            data_hash=NASTY,
            settings={NASTY: NASTY},
            run={"steps": 10 + len(seeds), "episodes": 1},
            preset=NASTY,
            dataset=NASTY,
            changes={NASTY: 1},
            seeds=seeds,
            asked=(Asked(NASTY, name, name, NASTY, 10),),
        )
        folder.ask(group)
        score = None if len(seeds) > 1 else 5.0
        outcome = {
            "score": score,
            "returns": [],
            "best": None,
            "curve": [] if score is None else [[10, score]],
            "behaviour_score": None,
            "warnings": [NASTY],
            "parameter_hash": NASTY,
        }
        run = {
            **{"together": [seeds[0]], "preset": NASTY, "dataset": NASTY, "seconds": 1.0},
            **{"updates_per_second": None, "last_wall_seconds": 1.0, "time": NASTY},
            "versions": {"device": NASTY},
        }
        folder.write_record(group, seeds[0], {"outcome": outcome, "run": run})
    write_sealed(folder.failure_path(group.key), {"error": NASTY, "kind": NASTY})
    (folder.path / "groups" / "broken<b>.json").write_text("{}")
    return folder


def test_everything_from_data_is_escaped(nasty, tmp_path):
    report = gather(nasty)
    assert report.failures == ((f"{NASTY} two on {NASTY}", NASTY),)
    assert [table.failed for table in report.tables] == [{}]  # one seed of it is there to be shown
    write_report(report, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    page = Page(text)
    assert page.count("script") == 1
    assert page.count("b") == 1  # the one score
    assert "alert(" in "".join(page.text)
    for suffix in (".md", ".tex"):
        write_report(report, tmp_path / f"r{suffix}")
    assert "<script" not in (tmp_path / "r.md").read_text().replace("\\<", "")
    assert r"\&" in (tmp_path / "r.tex").read_text()


def test_the_command_writes_all_kinds_and_refuses_others(nasty, tmp_path, capsys):
    for kind in ("html", "md", "tex"):
        assert main(["bench", "report", str(nasty.path), "--out", str(tmp_path / f"r.{kind}")]) == 0
    capsys.readouterr()
    out = str(tmp_path / "r.html")
    assert main(["bench", "report", str(nasty.path), "--out", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"] == 2
    assert main(["bench", "report", str(nasty.path), "--out", "r.pdf"]) == 2
    assert ".html, .md or .tex" in capsys.readouterr().err


def test_ticks_are_round_and_inside():
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert ticks(-3.0, 1.0) == [-3, -2, -1, 0, 1]
    assert ticks(5, 5) == [5]


# Enough of a browser to click on a head: rows are objects, and the body keeps their order.
DOM = """
function element(more) {
  return Object.assign({attrs: {}, handlers: {}, getAttribute(n) { return this.attrs[n] ?? null; },
    setAttribute(n, v) { this.attrs[n] = v; }, removeAttribute(n) { delete this.attrs[n]; },
    addEventListener(n, f) { this.handlers[n] = f; }}, more);
}
const rows = JSON.parse(process.argv[1]).map(cells => ({cells: cells.map(c =>
  ({textContent: c[0], dataset: c.length > 1 ? {v: c[1]} : {}}))}));
const body = {rows: rows, appendChild(r) { rows.splice(rows.indexOf(r), 1); rows.push(r); }};
const table = {tBodies: [body], querySelectorAll: () => heads};
const heads = [0, 1].map(i => element({cellIndex: i, closest: () => table}));
globalThis.document = {querySelectorAll: () => heads};
"""


def test_sorting_works(tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("no JavaScript engine here")
    script = resources.files("icql.bench").joinpath("report.js").read_text()
    clicks = """
    const shown = () => rows.map(r => r.cells[0].textContent).join("");
    const seen = [];
    heads[1].handlers.click(); seen.push(shown(), heads[1].attrs["aria-sort"]);
    heads[1].handlers.click(); seen.push(shown(), heads[1].attrs["aria-sort"]);
    heads[0].handlers.keydown({key: "Enter"});
    seen.push(shown(), heads[1].attrs["aria-sort"] ?? "");
    console.log(JSON.stringify(seen));
    """
    cells = [[["c"], ["9.0 ± 1", "9.0"]], [["a"], ["10.0", "10.0"]], [["b"], ["-1", "-1"]]]
    done = subprocess.run(
        [node, "-e", DOM + script + clicks, json.dumps(cells)], capture_output=True, text=True
    )
    assert done.stderr == ""
    assert json.loads(done.stdout) == ["bca", "ascending", "acb", "descending", "abc", ""]


@pytest.mark.skipif(not browser.installed(), reason="needs chromium and chromedriver")
def test_the_page_works_in_a_browser(tmp_path: Path) -> None:
    """It loads without a complaint, plots are drawn, and a click on a column sorts by it."""
    folder = made_up().made_up_folder(tmp_path / "bench", suites=("td3bc", "layers"), seeds=3)
    write_report(gather(folder), tmp_path / "report.html")
    with browser.browser(tmp_path / "profile") as page:
        page.open((tmp_path / "report.html").as_uri())
        assert page.complaints() == []
        drawn = page.run(
            "return Array.from(document.querySelectorAll('svg')).map(s => s.getBBox().width)"
        )
        assert len(drawn) > 3
        assert min(drawn) > 50
        column = (
            "var t = document.querySelector('table.sortable');"
            "function values() { return Array.from(t.tBodies[0].rows).map("
            "  r => Number(r.cells[1].dataset.v)); }"
        )
        before = page.run(f"{column} return values()")
        click = "t.querySelectorAll('thead th')[1].click();"
        up = page.run(f"{column} {click} return values()")
        down = page.run(f"{column} {click} return values()")
        assert up == sorted(before) != before
        assert down == sorted(before, reverse=True)
        page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
        dots = page.run(
            "return Array.from(document.querySelectorAll('svg .dots')).map(g => g.getBBox().width)"
        )
        assert len(dots) == 15 + 2 * 15 + 0 + 9 + 4 * 9  # both suites: outcomes, and their methods
        assert min(dots) > 50


@pytest.mark.skipif(not browser.installed(), reason="needs chromium and chromedriver")
def test_the_page_fits_a_phone_and_the_dark(tmp_path: Path) -> None:
    folder = made_up().made_up_folder(tmp_path / "bench", suites=("td3bc",), seeds=3)
    write_report(gather(folder), tmp_path / "report.html")
    with browser.browser(tmp_path / "profile") as page:
        page.show(width=390, scheme="dark")
        page.open((tmp_path / "report.html").as_uri())
        assert page.complaints() == []
        page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
        wide = "return [document.documentElement.scrollWidth, window.innerWidth]"
        held, shown = page.run(wide)
        assert held <= shown == 390  # tables scroll by themselves, the page does not
        back = "return getComputedStyle(document.body).backgroundColor"
        dark = page.run(back)
        page.show(width=390, scheme="light")
        assert page.run(back) == "rgb(255, 255, 255)" != dark
        task = "return document.querySelector('table.sortable tbody td').clientWidth"
        assert 60 < page.run(task) < 390 / 2  # numbers are seen beside the name of the task
