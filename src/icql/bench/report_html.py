"""The report as one page that needs nothing else: no script, font or picture from elsewhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from html import escape
from importlib import resources

from icql.bench.costs import SOURCE, costs, device_of
from icql.bench.report import Report
from icql.bench.report_charts import by_setting, curves, key, over_tasks
from icql.bench.report_values import looked_into
from icql.bench.tables import CLEAR, Table, TableCell
from icql.pages import document, look

WORDS = {
    "reproduced": f"our interval holds the published number, and is at most ± {CLEAR:g} points",
    "unclear": "it holds the number, and is too wide to say more",
    "above": "our interval lies above it",
    "below": "our interval lies below it",
    "short": "fewer updates than the suite's preset: no verdict",
    "other data": "not the data that the number is of: no verdict",
    "other settings": "another preset than the suite's: no verdict",
    "no interval": "a single seed has no interval: no verdict",
}

WIDE = "body{max-width:min(1600px,100%)}"  # a table has many methods

MISSES = (
    "A miss is a cell of full length whose interval over seeds lies below the first published "
    "number."
)


def page(report: Report) -> str:
    """Return the whole page; everything that comes from data is escaped."""
    counts = report.counts()
    tables = [table for table in report.tables if table.cells]
    links = [f'<a href="#{_id(t)}">{escape(t.suite.title)}</a>' for t in tables]
    links += [f'<a href="#{name}">{name}</a>' for name in ("misses", "cost", "runs")]
    body = [
        "<header><h1>Benchmark report</h1>",
        f"<p>{counts['cells']} finished cells of {counts['suites']} suites, "
        f"misses: {counts['misses']}, failures: {counts['failures']}.</p>",
        f"<nav>{' · '.join(links)}</nav></header>",
        *_notes(report),
        *(_suite(table) for table in tables),
        _misses(report),
        _cost(report),
        _runs(report),
    ]
    script = resources.files("icql.bench").joinpath("report.js").read_text()
    return document("Benchmark report", "".join(body), style=look() + WIDE, script=script)


def _id(table: Table) -> str:
    return f"suite-{escape(table.suite.id)}"


def _notes(report: Report) -> list[str]:
    lines = list(report.notes)
    lines += [f"{what} is not finished: {n} of {of} seeds." for what, n, of in report.unfinished]
    if not lines:
        return []
    return [f'<section class="notes"><h2>Notes</h2>{_list(lines)}</section>']


def _list(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _grid(head: Iterable[str], rows: Iterable[Iterable[str]], caption: str, foot: str = "") -> str:
    """A sortable table; cells are whole `<td>` elements."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return (
        f'<p class="caption">{escape(caption)}</p><div class="scroll"><table class="sortable">'
        f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody>{foot}</table></div>"
    )


def _td(text: str, value: float | str | None = None, *, kind: str = "", hint: str = "") -> str:
    """One cell: its text is escaped, `value` is what it is sorted by."""
    marks = {"data-v": value, "class": kind or None, "title": hint or None}
    said = "".join(f' {k}="{escape(str(v))}"' for k, v in marks.items() if v is not None)
    return f"<td{said}>{escape(text)}</td>"


# --- one suite ----------------------------------------------------------------------------------


def _suite(table: Table) -> str:
    suite = table.suite
    where = f"stands for {suite.paper} of the paper" if suite.paper else "our own"
    foot = _list(table.remarks) if table.remarks else ""
    sources = "; ".join(f"{name}: {cite}" for name, cite in table.sources.items())
    return (
        f'<section id="{_id(table)}"><h2>{escape(suite.title)}</h2>'
        f"<p>Suite <code>{escape(suite.id)}</code>, {escape(where)}.</p>"
        f'{_scores(table)}<p class="legend">{_legend()}</p>'
        + (f"<p>Sources. {escape(sources)}.</p>{foot}" if sources else "")
        + _aggregates(table)
        + _by_setting(table)
        + _curves(table)
        + looked_into(table)
        + "</section>"
    )


def _legend() -> str:
    return " ".join(
        f'<span class="tag {name.replace(" ", "-")}">{name}</span> {escape(said)};'
        for name, said in WORDS.items()
    ).rstrip(";")


def _scores(table: Table) -> str:
    head = ["task", *(name for _, name in table.rows)]
    rows = [
        [_td(task, task), *(_score(table, row, task) for row, _ in table.rows)]
        for task in table.tasks
    ]
    return _grid(head, rows, table.caption, _foot(table))


def _score(table: Table, row: str, task: str) -> str:
    cell = table.cells.get((row, task))
    if cell is None and (row, task) in table.failed:
        return _td("failed", hint=table.failed[row, task])
    if cell is None or cell.summary is None:
        return "<td>–</td>"
    mean, best = cell.summary["mean"], cell.best
    half = "" if cell.half is None else f" ± {cell.half:.1f}"
    hint = (
        f"{len(cell.scores)} seeds × {cell.episodes} episodes, {cell.steps:,} of "
        f"{cell.place.full_steps:,} updates, IQM {cell.summary['iqm']:.1f}, seeds: "
        + ", ".join(f"{score:.1f}" for score in cell.scores)
        + (f"; best seen, no result: {best:.1f}" if best is not None else "")
    )
    lines = []
    for number, verdict in cell.verdicts:
        std = "" if number.std is None else f" ± {number.std:.1f} std"
        lines.append(
            f'<small title="{escape(number.label)}">{escape(number.source)} {number.mean:.1f}'
            f"{std}{escape(number.caveat)} "
            f'<span class="tag {verdict.replace(" ", "-")}">{verdict}</span></small>'
        )
    if not cell.verdicts:
        # of a table of our own nothing was published: that need not be said in every cell
        tags = ["short"] * cell.short + [cell.verdict] * bool(table.suite.paper)
        marks = " ".join(f'<span class="tag {tag.replace(" ", "-")}">{tag}</span>' for tag in tags)
        lines.append(f"<small>{marks}</small>")
    return (
        f'<td data-v="{mean}" title="{escape(hint)}"><b>{mean:.1f}</b>{half}{"".join(lines)}</td>'
    )


def _foot(table: Table) -> str:
    if len(table.common) < 1:
        return ""
    ours, theirs = [], []
    for row, _ in table.rows:
        mean, paper = table.mean_of(row), table.published_mean(row)
        ours.append(f"<td>{'–' if mean is None else f'{mean:.1f}'}</td>")
        theirs.append(f"<td>{'–' if paper is None else f'{paper:.1f}'}</td>")
    lines = f"<tr><th>mean of {table.over}</th>{''.join(ours)}</tr>"
    if table.suite.paper:
        lines += f"<tr><th>the paper's, same tasks</th>{''.join(theirs)}</tr>"
    return f"<tfoot>{lines}</tfoot>"


def _aggregates(table: Table) -> str:
    if not table.iqm:
        return _improvement(table)
    over = f"{table.over}; {table.counted_sizes}"
    return (
        f"<h3>Over tasks</h3><p>{escape(over)} Intervals: 95 %, by a bootstrap stratified by task, "
        "which is too narrow for a handful of runs and has no width for one seed.</p>"
        f"{key(name for _, name in table.rows)}{over_tasks(table)}{_improvement(table)}"
    )


def _by_setting(table: Table) -> str:
    drawn = by_setting(table) if table.suite.vary else ""
    if not drawn:
        return ""
    said = f"Mean over seeds. {table.sizes}"
    return f"<h3>By setting</h3><p>{escape(said)}</p>{key(table.tasks)}{drawn}"


def _curves(table: Table) -> str:
    drawn = curves(table)
    if not drawn:
        return ""
    said = "Mean over seeds at each evaluation; point at a dot for numbers (least to largest seed)."
    return (
        f"<h3>Learning curves</h3><p>{escape(f'{said} {table.sizes}')}</p>"
        f"{key(name for _, name in table.rows)}{drawn}"
    )


def _improvement(table: Table) -> str:
    rows = list(table.scored)
    if not table.improvement:
        return ""
    names = dict(table.rows)
    lines = []
    for first in rows:
        cells = [_td(names[first], names[first])]
        for second in rows:
            one = table.improvement.get((first, second))
            if one is None:
                cells.append("<td></td>")
                continue
            text = f"{one['value']:.2f}"
            hint = f"{one['low']:.2f} to {one['high']:.2f}"
            sure = "sure" if one["low"] > 0.5 or one["high"] < 0.5 else ""
            cells.append(_td(text, one["value"], kind=sure, hint=hint))
        lines.append(cells)
    caption = (
        "Probability that a run of the row scores above one of the column (ties half), mean over "
        f"the tasks that both have; bold: its 95 % interval leaves out ½. {table.counted_sizes}"
    )
    return _grid(["P(row > column)", *(names[row] for row in rows)], lines, caption)


# --- the whole report ---------------------------------------------------------------------------


def _tally(report: Report) -> str:
    """How many cells have which verdict."""
    found = Counter(cell.verdict for cell in report.cells())
    return "Verdicts: " + ", ".join(f"{count} {name}" for name, count in found.most_common())


def _misses(report: Report) -> str:
    rows = []
    for cell, number in report.misses():
        mean = cell.summary["mean"] if cell.summary else 0.0
        rows.append(
            [
                _td(cell.place.suite),
                _td(cell.place.name),
                _td(cell.place.task),
                _td(f"{mean:.1f}", mean),
                _td(f"{number.mean:.1f} ({number.source}, {number.kind})", number.mean),
                _td(f"{mean - number.mean:.1f}", mean - number.mean),
            ]
        )
    head = ["suite", "method", "task", "ours", "published", "difference"]
    none = "" if rows else " There is none."
    caption = f"{MISSES}{none} {_tally(report)}."
    failures = [[_td(what), _td(why, kind="prose")] for what, why in report.failures]
    failed = _grid(["failed", "error"], failures, "Failures of the last try") if failures else ""
    title = "<h2>Misses and failures</h2>"
    found = _grid(head, rows, caption) if rows else f"<p>{escape(caption)}</p>"
    return f'<section id="misses">{title}{found}{failed}</section>'


def _by_name(cells: Iterable[TableCell]) -> list[TableCell]:
    return sorted(cells, key=lambda cell: (cell.place.task, cell.place.name, cell.group.key))


def _cost(report: Report) -> str:
    rows, cells = [], {cell.group.key: cell for cell in report.cells()}
    for cell in _by_name(cells.values()):
        rate = cell.records[0]["run"]["updates_per_second"]
        hours = cell.hours
        rows.append(
            [
                _td(cell.place.name),
                _td(cell.place.task),
                _td(f"{len(cell.records)}", len(cell.records)),
                _td(f"{cell.steps:,}", cell.steps),
                _td(f"{cell.seconds:,.1f}", cell.seconds),
                _td("–" if rate is None else f"{rate:,.0f}", rate or 0),
                _td(f"{hours['full']:.2f}", hours["full"] or 0),
                _td(
                    "–" if hours["paper"] is None else f"{hours['paper']:.1f}", hours["paper"] or 0
                ),
                _td(device_of(cell)),
            ]
        )
    caption = (
        "Updates alone, without compilation and evaluation; seconds of seeds side by side are "
        "counted once, and updates/s are those of all of them. The paper's hours: its time per "
        f"update ({SOURCE}) for as many seeds at full length."
    )
    sums = [cost.said(table.suite.title) for table in report.tables for cost in costs(table)]
    head = [
        *("method", "task", "seeds", "updates", "seconds", "updates/s"),
        *("hours at full length", "paper's hours", "device"),
    ]
    title = f'<section id="cost"><h2>Cost</h2>{_list(sums)}'
    return f"{title}{_grid(head, rows, caption)}</section>"


def _runs(report: Report) -> str:
    """Settings and versions of every run; what runs share is written once."""
    shared: dict[str, str] = {}
    items = []
    for cell in _by_name({cell.group.key: cell for cell in report.cells()}.values()):
        group, run = cell.group, cell.records[0]["run"]
        versions = json.dumps(run["versions"], indent=1)
        number = shared.setdefault(versions, str(len(shared) + 1))
        warnings = sorted({w for r in cell.records for w in r["outcome"]["warnings"]})
        facts = {
            "group": group.key,
            "preset": group.preset,
            "changed": dict(group.changes),
            "data": {"name": run["dataset"], "hash": group.data_hash},
            "seeds": list(group.seeds),
            "finished": run["time"],
            "run": dict(group.run),
            "settings": dict(group.settings),
        }
        text = json.dumps(facts, indent=None, separators=(", ", ": "), ensure_ascii=False)
        items.append(
            f"<details><summary>{escape(group.label)} <small>{escape(group.algo)}, "
            f"{cell.steps:,} updates, {len(cell.records)} seeds × {cell.episodes} episodes, "
            f"versions {number}</small></summary><pre>{escape(text)}</pre>"
            f"{_list(warnings) if warnings else ''}</details>"
        )
    versions = "".join(
        f"<details><summary>versions {number}</summary><pre>{escape(text)}</pre></details>"
        for text, number in shared.items()
    )
    older = ""
    if report.superseded:
        older = f"<h3>Also run, and not shown above</h3>{_list(report.superseded)}"
    return (
        '<section id="runs"><h2>Settings and versions of every run</h2>'
        f"{versions}{''.join(items)}{older}</section>"
    )
