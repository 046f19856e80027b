"""The report's tables for documents: Markdown and LaTeX (booktabs), from the same data."""

from __future__ import annotations

from icql.bench.costs import SOURCE, costs
from icql.bench.report import Report
from icql.bench.tables import CLEAR, Table, TableCell

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "–": "--",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


VERDICTS = (
    "The verdict is about the first published number. *Reproduced*: our interval holds it, and is "
    f"at most ± {CLEAR:g} points; *unclear*: it holds it, and is wider; *above*, *below*: our "
    "interval lies there; *short* (marked \\*): fewer updates than the suite's preset, so none."
)


def markdown(report: Report, *, picture: str | None = None) -> str:
    """Every table with its aggregates, then misses, failures, cost, runs and notes."""
    counts = report.counts()
    short = sum(cell.short for cell in report.cells())
    said = (
        f"{counts['cells']} finished cells; {short} of {len(report.cells())} entries are short: "
        "they have fewer updates than the suite's preset, and say nothing about a method at full "
        "length."
    )
    parts = ["# Benchmark report", "Written by `icql bench report`, never by hand.", said]
    parts += [] if picture is None else [f"![Scores of every method on every task]({picture})"]
    parts += [*(_section(table) for table in report.tables)]
    misses = [
        f"- {_plain(cell.place.name)} on {_plain(cell.place.task)} ({cell.place.suite}): "
        f"{_short_score(cell)}, {number.source} {number.mean:.1f} ({number.kind})"
        for cell, number in report.misses()
    ]
    failures = [f"- {_plain(what)}: {_plain(why)}" for what, why in report.failures]
    notes = [f"- {_plain(note)}" for note in report.notes]
    notes += [f"- {_plain(what)}: {n} of {of} seeds" for what, n, of in report.unfinished]
    spent = [
        f"- {_plain(cost.said(table.suite.title))}"
        for table in report.tables
        for cost in costs(table)
    ]
    if spent:
        said = (
            "Updates alone, without compilation and evaluation, by the records' own clocks. The "
            f"paper's hours follow from its time per update ({SOURCE})."
        )
        spent = [said, "", *spent]
    for title, lines in (
        ("Misses", misses),
        ("Failures", failures),
        ("Cost", spent),
        ("Runs", _runs(report)),
        ("Notes", notes),
    ):
        if lines:
            parts.append(f"## {title}\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _runs(report: Report) -> list[str]:
    """What every run was, and with which versions."""
    shared: dict[str, int] = {}
    cells = {cell.group.key: cell for cell in report.cells()}
    lines = [
        "| method | task | preset, changes | updates | seeds × episodes | data | versions |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in sorted(cells.values(), key=lambda c: (c.place.task, c.place.name, c.group.key)):
        group, run = cell.group, cell.records[0]["run"]
        versions = ", ".join(f"{name} {value}" for name, value in run["versions"].items())
        number = shared.setdefault(versions, len(shared) + 1)
        changes = ", ".join(f"{name} {value}" for name, value in group.changes.items())
        preset = f"{group.preset}{', ' if changes else ''}{changes}"
        said = (
            cell.place.name,
            cell.place.task,
            preset,
            f"{cell.steps:,} of {cell.place.full_steps:,}",
        )
        size = f"{len(cell.records)} × {cell.episodes}"
        lines.append(
            f"| {' | '.join(map(_plain, said))} | {size} | {_plain(group.data_hash[:12])} "
            f"| {number} |"
        )
    found = [f"Versions {number}: {_plain(text)}." for text, number in shared.items()]
    return [*lines, *(line for text in found for line in ("", text))] if cells else []


def _section(table: Table) -> str:
    suite = table.suite
    where = f" ({suite.paper} of the paper)" if suite.paper else ""
    lines = [f"## {_plain(suite.title)}{where}", "", table.caption, ""]
    lines += [
        "| task | method | ours | updates | published | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for task in table.tasks:
        for row, name in table.rows:
            cell = table.cells.get((row, task))
            if cell is not None:
                short = ", short" if cell.short else ""
                lines.append(
                    f"| {_plain(task)} | {_plain(name)} | {_short_score(cell)} | "
                    f"{cell.steps:,}{short} | {_plain(_beside(cell)) or '–'} | {cell.verdict} |"
                )
            elif (row, task) in table.failed:
                lines.append(f"| {_plain(task)} | {_plain(name)} | failed | – | – | – |")
    if any(cell.published for cell in table.cells.values()):
        lines += ["", VERDICTS]
    if table.iqm:
        over = f"Over {table.over}, 95 % by a bootstrap stratified by task:"
        lines += ["", over, "", "| method | IQM | mean | paper's mean |", "|---|---|---|---|"]
        for row, name in table.rows:
            if (one := table.iqm.get(row)) is not None:
                iqm = f"{one['value']:.1f} ({one['low']:.1f} to {one['high']:.1f})"
                means = (table.mean_of(row), table.published_mean(row))
                said = " | ".join("–" if mean is None else f"{mean:.1f}" for mean in means)
                lines.append(f"| {_plain(name)} | {iqm} | {said} |")
    lines += _improvement(table)
    cites = [f"{name}: {cite}." for name, cite in table.sources.items()]
    return "\n".join(lines) + "".join(f"\n\n{line}" for line in (*cites, *table.remarks))


def _improvement(table: Table) -> list[str]:
    """Pairs of methods, on the tasks that both have."""
    if not table.improvement:
        return []
    rows, names = list(table.scored), {row: _plain(name) for row, name in table.rows}
    said = "Probability that a run of the row scores above one of the column, ties half, mean over "
    lines = ["", f"{said}the tasks that both have:", ""]
    lines.append(f"| | {' | '.join(names[row] for row in rows)} |")
    lines.append("|---" * (len(rows) + 1) + "|")
    for first in rows:
        found = [table.improvement.get((first, second)) for second in rows]
        cells = ("–" if one is None else f"{one['value']:.2f}" for one in found)
        lines.append(f"| {names[first]} | {' | '.join(cells)} |")
    return lines


def latex(report: Report) -> str:
    """One `table` for each suite: tasks down, methods across, the first published number below."""
    return "\n\n".join(_latex_table(table) for table in report.tables) + "\n"


def _latex_table(table: Table) -> str:
    head = " & ".join(["Task", *(_tex(name) for _, name in table.rows)])
    lines = []
    for task in table.tasks:
        cells = [table.cells.get((row, task)) for row, _ in table.rows]
        ours = " & ".join(
            _tex(_short_score(cell)) if cell else "failed" if (row, task) in table.failed else "--"
            for cell, (row, _) in zip(cells, table.rows, strict=True)
        )
        lines.append(f"{_tex(task)} & {ours} \\\\")
        firsts = [cell.verdicts[:1] if cell is not None else [] for cell in cells]
        if any(firsts):
            theirs = [
                _tex(f"({found[0][0].mean:.1f}{found[0][0].caveat}, {found[0][1]})")
                if found
                else ""
                for found in firsts
            ]
            lines.append(f" & {' & '.join(theirs)} \\\\")
    caption = table.caption
    if any(cell.published for cell in table.cells.values()):
        caption += " In brackets the first published number, and how our interval lies to it."
        caption += "".join(f" {line}" for line in table.legend)
    if any(cell.short for cell in table.cells.values()):
        caption += " *: short, fewer updates than the preset."
    body = "\n".join(lines)
    return (
        "\\begin{table}[htbp]\n\\centering\\small\n"
        f"\\caption{{{_tex(table.suite.title)}. {_tex(caption)}}}\n"
        f"\\label{{tab:icql-{table.suite.id}}}\n"
        f"\\begin{{tabular}}{{@{{}}l{'r' * len(table.rows)}@{{}}}}\n\\toprule\n{head} \\\\ "
        f"\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}"
    )


def _short_score(cell: TableCell) -> str:
    if cell.summary is None:
        return "–"
    half = "" if cell.half is None else f" ± {cell.half:.1f}"
    return f"{cell.summary['mean']:.1f}{half}{'*' if cell.short else ''}"


def _beside(cell: TableCell) -> str:
    return "; ".join(
        f"{number.source} {number.mean:.1f}" + ("" if number.kind == "run" else f" ({number.kind})")
        for number in cell.published
    )


def _plain(text: str) -> str:
    """Text that stays one cell of one line, and no markup."""
    clean = " ".join(text.split())
    for sign in ("\\", "|", "<", "*", "_", "`", "["):
        clean = clean.replace(sign, f"\\{sign}")
    return clean


def _tex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))
