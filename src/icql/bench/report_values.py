"""The charts behind the scores: value maps, distances of neighbours, Q̂ by layer."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from icql.bench.report_charts import figures, key
from icql.bench.svg import Line, colour, dot_map, line_chart
from icql.bench.tables import Table, TableCell

FOLLOWED = "discounted return that followed"
PARTS = {"all": "all other states", "other_episodes": "states of other episodes"}


def looked_into(table: Table) -> str:
    """Everything that was analysed, task by task; nothing where nothing was."""
    tasks = [task for task in table.tasks if _data(table, task) is not None]
    if not tasks:
        return ""
    return (
        f"<h3>Values, neighbours, layers</h3>{_layers(table)}{_distances(table, tasks)}"
        f"{''.join(_maps(table, task) for task in tasks)}"
    )


def _data(table: Table, task: str) -> Mapping[str, Any] | None:
    """The analysis of a task's data; cells with other data are named in the report's notes."""
    cells = [table.cells.get((row, task)) for row, _ in table.rows]
    return next((cell.data for cell in cells if cell is not None and cell.data), None)


def _cells(table: Table, task: str) -> list[tuple[int, str, TableCell]]:
    """Number, name and cell of every method whose critics were analysed on the task."""
    found = []
    for number, (row, name) in enumerate(table.rows):
        cell = table.cells.get((row, task))
        if cell is not None and cell.critics is not None:
            found.append((number, name, cell))
    return found


# --- value maps ---------------------------------------------------------------------------------


def _maps(table: Table, task: str) -> str:
    """The same logged states, coloured by what followed and by what each critic says of them."""
    data = _data(table, task)
    assert data is not None
    charts = [_map(data, data["outcome"], "logged outcome", FOLLOWED)]
    for _, name, cell in _cells(table, task):
        assert cell.critics is not None
        if cell.data is None or cell.data["plane"] != data["plane"]:
            continue  # of other data: its states are other ones
        charts.append(_map(data, cell.critics["values"], name, _agreement(cell)))
    said = f"{data['rows']} logged states on the first two principal directions, low to high: "
    return (
        f"<details><summary>Value maps of {escape(task)}</summary><p><small>{escape(said)}"
        f"{_ramp()}; each map from its own 2nd to 98th percentile. ρ: rank correlation of Q with "
        "the discounted return that followed, mean over seeds; values are on each run's own "
        f"rewards.</small></p>{figures(charts)}</details>"
    )


def _map(
    data: Mapping[str, Any], values: list[float | None], name: str, said: str
) -> tuple[str, str]:
    known = [
        (place, value)
        for place, value in zip(data["plane"], values, strict=False)
        if value is not None and None not in place
    ]
    numbers = [value for _, value in known]
    if not numbers:
        return "", name
    title = f"{name}: {min(numbers):.4g} to {max(numbers):.4g}; {said}"
    return dot_map(
        [(x, y) for (x, y), _ in known], numbers, title=title
    ), name if said == FOLLOWED else f"{name}, {said}"


def _agreement(cell: TableCell) -> str:
    assert cell.critics is not None
    ranks = [rank for rank in cell.critics["rank"] if rank is not None]
    if not ranks:
        return f"seed {cell.critics['seed']}"
    return f"seed {cell.critics['seed']}, ρ = {sum(ranks) / len(ranks):.2f}"


def _ramp() -> str:
    return '<span class="ramp"></span>'


# --- neighbours and layers ----------------------------------------------------------------------


def _distances(table: Table, tasks: list[str]) -> str:
    """How far the k-th nearest state is, in movements of one step."""
    charts = []
    for task in tasks:
        data = _data(table, task)
        assert data is not None
        unit, lines = data["step"] or 1.0, []
        for number, (part, name) in enumerate(PARTS.items()):
            points = [
                (float(one["k"]), one[part][1] / unit, _said(f"{name}, k = {one['k']}", one[part]))
                for one in data["distances"]
                if None not in one[part]
            ]
            lines.append(Line(name, colour(number), points, dashed=number > 0))
        chart = line_chart(lines, title=f"Neighbours on {task}", x="k", y="distance / one step")
        # none in folders that older versions wrote
        spread, lasting = data.get("action_spread"), data.get("deviations_last")
        decides = "" if spread is None else f", spread of actions {spread:.2f}"
        decides += "" if lasting is None else f" ({lasting:.2f} of it lasts)"
        charts.append((chart, f"{task}, {data['space']} columns{decides}"))
    said = (
        "Distance to the k-th nearest logged state, median over 300 states, in units of the median "
        "movement of one step; point at a dot for the distances themselves (10th to 90th "
        "percentile). Spread of actions: how much they differ in similar states (1: as much as "
        "anywhere), and how much of a difference is still there at the next step."
    )
    return f"<h4>Distances of neighbours</h4><p>{said}</p>{key(PARTS.values())}{figures(charts)}"


def _layers(table: Table) -> str:
    """Q̂ after every in-context TD step."""
    charts = []
    for task in table.tasks:
        lines = []
        for number, name, cell in _cells(table, task):
            assert cell.critics is not None
            steps = cell.critics["layers"] or []
            points = [
                (float(layer), one[0], _said(f"{name}, layer {layer}", [one[1], one[0], one[2]]))
                for layer, one in enumerate(steps, start=1)
                if None not in one
            ]
            if points:
                lines.append(Line(name, colour(number), points))
        chart = line_chart(lines, title=f"Q̂ by layer on {task}", x="layer", y="Q̂ after it")
        charts.append((chart, task))
    drawn = figures(charts)
    if not drawn:
        return ""
    said = (
        "Mean over logged pairs after every in-context TD step, of the first critic of one seed; "
        "point at a dot for the 10th to 90th percentile."
    )
    return f"<h4>Q̂ by layer</h4><p>{said}</p>{key(name for _, name in table.rows)}{drawn}"


def _said(what: str, one: list[float]) -> str:
    return f"{what}: {one[1]:.3g} ({one[0]:.3g} to {one[2]:.3g})"
