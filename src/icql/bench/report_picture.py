"""Tables as one picture (SVG) for a README: our intervals beside the published numbers."""

from __future__ import annotations

from html import escape

from icql.bench.report import Report
from icql.bench.svg import Scale, colour, ticks
from icql.bench.tables import Table, TableCell

WIDTH, COLUMNS, ROW, HEAD, FOOT, TITLE = 400, 2, 20, 26, 24, 48
LETTER = 6.0  # of a name, about as wide as they get on average
# a picture in a page is light or dark as its reader likes it
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#5d6673}.task,.title{font-weight:600;fill:#1c1f24}"
    ".title{font-size:14px}"
    ".grid{stroke:#d8dde3}.number{fill:none;stroke:#1c1f24;stroke-width:1.4}"
    "@media (prefers-color-scheme:dark){text{fill:#9aa4b0}.task,.title{fill:#e6e9ed}"
    ".grid{stroke:#343b44}.number{stroke:#e6e9ed}}"
)


def picture(report: Report) -> str:
    """Every table below the other."""
    parts, height = [], 0
    tables = [table for table in report.tables if table.scores]
    methods = list(dict.fromkeys(row for table in tables for row, _ in table.rows))
    for table in tables:
        drawn, tall = _table(table, methods)
        parts.append(f'<g transform="translate(0 {height})">{drawn}</g>')
        height += tall
    width = WIDTH * COLUMNS
    said = "No scores yet."
    if tables:
        said = (
            "Bars: 95 % intervals; pale: short, fewer updates than the preset's. Diamonds: the "
            "first published number."
        )
    parts.append(f'<text x="8" y="{height + 14}">{said}</text>')
    height += FOOT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'role="img" aria-label="Scores of every method on every task"><style>{STYLE}</style>'
        f"{''.join(parts)}</svg>\n"
    )


def _table(table: Table, methods: list[str]) -> tuple[str, int]:
    """One suite, a panel for each task and a row for each method, and its height.

    A method has its colour by its place among `methods`, the same in every table.
    """
    panels = [_panel(table, task, methods) for task in table.tasks]
    parts = [
        f'<text class="title" x="8" y="18">{escape(table.suite.title)}</text>',
        f'<text x="8" y="36">{escape(table.caption)}</text>',
    ]
    y = TITLE
    for first in range(0, len(panels), COLUMNS):
        beside = panels[first : first + COLUMNS]
        for column, (drawn, _) in enumerate(beside):
            parts.append(f'<g transform="translate({WIDTH * column} {y})">{drawn}</g>')
        y += max(tall for _, tall in beside)
    return "".join(parts), y


def _panel(table: Table, task: str, methods: list[str]) -> tuple[str, int]:
    """One task, and its height."""
    rows = [
        (methods.index(row), name, cell)
        for row, name in table.rows
        if (cell := table.cells.get((row, task))) is not None and cell.summary is not None
    ]
    reach = [x for _, _, cell in rows for x in _reach(cell)]
    low, high = min(0.0, *reach), max(1.0, *reach)
    left = 14 + LETTER * max(len(name) for _, name in table.rows)
    right, bottom = WIDTH - 16, HEAD + ROW * len(rows)

    def at(score: float) -> float:
        return left + (score - low) / (high - low) * (right - left)

    parts = [f'<text class="task" x="8" y="16">{escape(task)}</text>']
    for tick in ticks(low, high):
        parts.append(
            f'<line class="grid" x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="{HEAD}" '
            f'y2="{bottom}"/><text x="{at(tick):.1f}" y="{bottom + 13}" text-anchor="middle">'
            f"{tick:g}</text>"
        )
    for place, (number, name, cell) in enumerate(rows):
        y = HEAD + ROW * place + ROW / 2
        parts.append(
            f'<text x="{left - 6:g}" y="{y + 4:g}" text-anchor="end">{escape(name)}</text>'
        )
        parts += _marks(cell, number, y, at)
    return "".join(parts), bottom + 26


def _marks(cell: TableCell, number: int, y: float, at: Scale) -> list[str]:
    assert cell.summary is not None
    mean, half = cell.summary["mean"], cell.half or 0.0
    hue, pale = colour(number), 0.4 if cell.short else 1.0
    drawn = [
        f'<g fill="{hue}" opacity="{pale:g}"><rect x="{at(mean - half):.1f}" y="{y - 4:g}" '
        f'width="{max(1.0, at(mean + half) - at(mean - half)):.1f}" height="8" rx="2" '
        f'opacity="0.45"/><circle cx="{at(mean):.1f}" cy="{y:g}" r="4"/></g>'
    ]
    for one in cell.published[:1]:
        x = at(one.mean)
        drawn.append(
            f'<path class="number" d="M{x:.1f} {y - 5:g}l5 5l-5 5l-5 -5z">'
            f"<title>{escape(one.source)} {one.mean:.1f}</title></path>"
        )
    return drawn


def _reach(cell: TableCell) -> list[float]:
    assert cell.summary is not None
    mean, half = cell.summary["mean"], cell.half or 0.0
    return [mean - half, mean + half, *(one.mean for one in cell.published[:1])]
