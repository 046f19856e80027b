"""The charts of a table: learning curves, aggregates, and how scores move with a setting."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from icql.bench.svg import Line, colour, interval_chart, line_chart
from icql.bench.tables import Table


def key(names: Iterable[str]) -> str:
    """Which colour is what."""
    items = (
        f'<span><i style="background:{colour(number)}"></i>{escape(name)}</span>'
        for number, name in enumerate(names)
    )
    return f'<p class="key">{"".join(items)}</p>'


def figures(charts: Iterable[tuple[str, str]]) -> str:
    """Charts side by side, each with its caption; nothing where there is none."""
    drawn = [
        f"<figure>{chart}<figcaption>{escape(caption)}</figcaption></figure>"
        for chart, caption in charts
        if chart
    ]
    return f'<div class="charts">{"".join(drawn)}</div>' if drawn else ""


def over_tasks(table: Table) -> str:
    """Interquartile means with their intervals, and performance profiles."""
    hues = {row: colour(number) for number, (row, _) in enumerate(table.rows)}
    names = dict(table.rows)
    bars = [
        (names[row], hues[row], one["value"], one["low"], one["high"])
        for row, one in table.iqm.items()
    ]
    limits, shares = table.profile
    lines = []
    for row, share in shares.items():
        said = [f"{names[row]}: {100 * s:.0f} % of runs above" for s in share]
        points = [(t, 100 * s, word) for t, s, word in zip(limits, share, said, strict=True)]
        lines.append(Line(names[row], hues[row], points, dots=False))
    title, x, y = "Performance profile", "score", "% of runs above"
    profile = line_chart(lines, title=title, x=x, y=y, width=520, height=260)
    means = interval_chart(bars, title="Interquartile mean", x="IQM of all runs")
    return figures([(means, "Interquartile mean"), (profile, title)])


def curves(table: Table) -> str:
    """Scores during training, a chart for each task that was evaluated more than once."""
    return figures((_curve(table, task), task) for task in table.tasks)


def _curve(table: Table, task: str) -> str:
    lines = []
    for number, (row, name) in enumerate(table.rows):
        cell = table.cells.get((row, task))
        if cell is None or not cell.curve:
            continue
        points = []
        for step, mean, low, high in cell.curve:
            said = f"{name}, update {step:,}: {mean:.1f} ({low:.1f} to {high:.1f})"
            points.append((float(step), mean, said))
        lines.append(Line(name, colour(number), points))
    if all(len(line.points) < 2 for line in lines):
        return ""
    behaviour = next((c.behaviour for (_, t), c in table.cells.items() if t == task), None)
    if lines and behaviour is not None:
        ends = [point[0] for line in lines for point in line.points]
        said = f"mean of the data: {behaviour:.1f}"
        across = [(x, behaviour, said) for x in sorted({min(ends), max(ends)})]
        lines.append(Line(said, "#888888", across, dots=False, dashed=True))
    return line_chart(lines, title=f"Scores on {task}", x="updates", y="score")


def by_setting(table: Table) -> str:
    """Scores against the setting that the suite varies, the first published ones dashed."""
    varied = table.suite.vary
    values = {row.id: row.settings[varied] for row in table.suite.rows if varied in row.settings}
    lines = []
    for number, task in enumerate(table.tasks):
        ours, theirs = list[tuple[float, float, str]](), list[tuple[float, float, str]]()
        for row, value in values.items():
            cell = table.cells.get((row, task))
            if cell is None or cell.summary is None:
                continue
            mean, half = cell.summary["mean"], cell.half
            around = "" if half is None else f" ± {half:.1f}"
            ours.append((value, mean, f"{task}, {varied} = {value}: {mean:.1f}{around}"))
            for one in cell.published[:1]:
                said = f"{task}, {varied} = {value}: {one.source} {one.mean:.1f}"
                theirs.append((value, one.mean, said))
        if len(ours) > 1:
            lines.append(Line(task, colour(number), ours))
            if len(theirs) == len(ours):
                name = f"{task}, published"
                lines.append(Line(name, colour(number), theirs, dots=False, dashed=True))
    title = f"Scores by {varied}"
    chart = line_chart(lines, title=title, x=varied, y="score", width=520, height=300)
    return figures([(chart, f"{title}; dashed: published")])
