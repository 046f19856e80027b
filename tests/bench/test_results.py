"""The committed results: a page and a picture that nobody edits, of records to be believed."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from icql.bench.records import BenchFolder
from icql.bench.report import gather, write_report
from icql.cli import main

ROOT = Path(__file__).parents[2]
RECORDS, PAGE, PICTURE = ROOT / "results", ROOT / "docs/results.md", ROOT / "docs/results.svg"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """What the command writes from the committed records, as `make results` does."""
    out = tmp_path / "docs"
    page, picture = str(out / PAGE.name), str(out / PICTURE.name)
    assert main(["bench", "report", str(RECORDS), "--out", page, "--picture", picture]) == 0
    return out


@pytest.mark.parametrize("path", [PAGE, PICTURE], ids=lambda path: path.name)
def test_the_committed_page_is_what_the_command_writes(path, written):
    assert path.read_text() == (written / path.name).read_text(), "run: make results"


def test_committed_records_are_whole_and_say_nothing_of_a_machine():
    folder = BenchFolder.open(RECORDS)
    groups, wrong = folder.groups()
    assert groups
    assert wrong == []
    for group in groups:
        records, damaged = folder.records(group)
        assert damaged == {}
        assert sorted(records) == list(group.seeds) or folder.failure(group) is not None
        assert not Path(group.dataset).is_absolute()
    allowed = {"bench.json", "groups", "records", "analyses", "failures"}
    assert {path.name for path in RECORDS.iterdir() if path.name != "locks"} <= allowed
    for path in RECORDS.rglob("*.json"):
        assert path.stat().st_size < 50_000
        assert all(word not in path.read_text() for word in ("/home", "/tmp", "/work", "/root"))


def test_every_short_cell_says_so(written):
    report, text = gather(BenchFolder.open(RECORDS)), PAGE.read_text()
    tasks = tuple(f"| {task} | " for table in report.tables for task in table.tasks)
    rows = [line for line in text.splitlines() if line.count(" | ") == 5]
    shown = [line for line in rows if line.startswith(tasks)]
    failed = sum(len(table.failed) for table in report.tables)
    assert sum(" | failed | " in line for line in shown) == failed
    assert len(shown) == len(report.cells()) + failed
    assert sum(", short |" in line for line in shown) == sum(c.short for c in report.cells())


def test_a_changed_record_changes_nothing_until_it_is_believed(written, tmp_path):
    """An edited score has no seal: the page is written without it, and says so."""
    copy = Path(shutil.copytree(RECORDS, tmp_path / "results"))
    record = next((copy / "records").iterdir())
    record.write_text(record.read_text().replace('"score": ', '"score": 1'))
    write_report(gather(BenchFolder.open(copy)), tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "does not match its digest" in text
    assert text != PAGE.read_text()


def test_the_picture_is_one_file_with_a_mark_for_every_score():
    tree = ElementTree.fromstring(PICTURE.read_text())
    dots = [one for one in tree.iter() if one.tag.endswith("circle")]
    tables = gather(BenchFolder.open(RECORDS)).tables
    cells = [cell for table in tables for cell in table.cells.values()]
    assert len(dots) == sum(cell.summary is not None for cell in cells)
    assert all(table.suite.title in PICTURE.read_text() for table in tables)
    assert "href" not in PICTURE.read_text()
    names = [one for one in tree.iter() if one.get("text-anchor") == "end"]
    assert len(names) == len(dots)
    assert all(float(str(one.get("x"))) > 5.5 * len(str(one.text)) for one in names)  # not cut off


def test_rows_of_panels_are_as_tall_as_their_tallest():
    suites = [one for one in ElementTree.fromstring(PICTURE.read_text()) if one.tag.endswith("}g")]
    assert len(suites) == 2
    for suite in suites:
        lowest: dict[int, float] = {}  # of the panels that begin at a height, side by side
        for panel in suite:
            if panel.tag.endswith("}g"):
                top = int(str(panel.get("transform")).rstrip(")").split()[-1])
                texts = [float(str(one.get("y"))) for one in panel if one.tag.endswith("}text")]
                lowest[top] = max(lowest.get(top, 0), top + max(texts))
        tops = sorted(lowest)
        assert len(tops) > 1
        for here, below in itertools.pairwise(tops):
            assert 0 < below - lowest[here] < 20
