"""In a notebook answers show themselves: whole numbers and words, nothing that a browser runs."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest

from evidence.test_alarm import walks
from icql.evidence.alarm import fit_alarm
from icql.evidence.behind import gather
from icql.judging.notebook import Choice, Judged
from icql.pages import note

EVIL = "<script>alert(1)</script>"


class Cells(HTMLParser):
    """The text of all cells; elements that are open at the end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        assert not attrs
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] in ("td", "th"):
            self.cells.append(data)


def shown(text: str) -> Cells:
    found = Cells(text)
    assert found.open == []
    assert found.seen <= {"div", "strong", "table", "thead", "tbody", "tr", "th", "td"}
    assert len(text) < 20_000
    return found


def test_words_are_escaped_and_numbers_short():
    found = shown(note(EVIL, [EVIL], [EVIL], [[EVIL, 1.23456789, 7]]))
    assert found.cells == [EVIL, EVIL, "1.235", "7"]


def test_evidence():
    log, rng = walks(5, 0), np.random.default_rng(0)
    rows = rng.integers(len(log), size=(3, 14))
    influence = rng.normal(size=(3, 14))
    found = gather(log, rows, np.ones((3, 14)), influence, np.zeros(3), np.arange(100.0))
    text = found._repr_html_()
    page = shown(text)
    assert f"value {found.value[0]:.4g}" in text
    assert "the first of 3 pairs" in text
    assert page.cells[6] == str(found.rows[0, 0])  # the largest part first
    assert "4 more" in page.cells
    assert page.cells[-1] == f"{found.influence[0, 10:].sum():.4g}"


def test_alarm():
    log = walks(30, 0)
    alarm = fit_alarm(log, rate=0.1)
    text = alarm(np.concatenate([log.states[:20], [[9e9, 0, 0, 0]]]))._repr_html_()
    page = shown(text)
    assert "the alarm rings at 1" in text
    assert page.cells[4:7:2] == ["20", "rings"]
    assert len(page.cells) == 4 + 4 * 10
    assert "the alarm is silent" in alarm(log.states[:2])._repr_html_()


def report(**changes) -> Judged:
    fqe = {"estimate": 2.0, "interval": [1.0, 3.0]}
    importance = {"estimate": None, "interval": None}
    plain = {
        "run": EVIL,
        "settings": {},
        "verdict": "better",
        "reference": "the log",
        "estimate": 2.0,
        "interval": [1.0, 3.0],
        "reasons": [EVIL],
        "notes": [],
        "discount": 0.99,
        "behaviour": 0.5,
        "methods": {"fqe": fqe, "importance": importance},
    }
    return Judged({**plain, **changes})


def test_verdict():
    page = shown(report()._repr_html_())
    assert page.cells[4:6] == ["logged", "0.5"]
    assert page.cells[6:10] == ["fitted Q evaluation", "2", "1", "3"]
    assert page.cells[10:] == ["importance sampling", "not finite", "no interval"]


@pytest.mark.parametrize("winner", [report(), None])
def test_choice(winner):
    found = Choice(winner=winner, shown=False, reasons=["why"], candidates=[report(), report()])
    page = shown(found._repr_html_())
    assert page.cells[5:10] == [EVIL, "better", "2", "1", "3"]
