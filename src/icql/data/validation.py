"""Is this log what it claims to be? Every known defect, with its row, before anything is trained.

Errors are defects that make the data unusable or wrong beyond doubt; warnings are what only the
owner of the log can judge, with the consequence of leaving it. Data without errors loads. The
rules and their limits stand in `icql.data.rules`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from icql.data.columns import Columns
from icql.data.findings import Finding, Findings
from icql.data.log import Log
from icql.data.rules import RULES
from icql.data.sources import Source, load_steps
from icql.data.store import is_store, open_store, verify_store
from icql.data.tasks import Task
from icql.data.transitions import DataInfo, Steps, Transitions
from icql.errors import UserError


def validate_dataset(
    name_or_path: str | Path,
    *,
    task: str | None = None,
    columns: Columns | str | Path | None = None,
) -> tuple[Findings, Source | None]:
    """Validate whatever `load_dataset` would load, and give what was read.

    Data that cannot be read at all has one finding, mostly `unreadable`, and no source. A store
    has the findings of the log that it was made of, and no source either.
    """
    try:
        if is_store(name_or_path):  # its log was validated when it was made
            data = open_store(name_or_path, task=task)
            return Findings(warnings=verify_store(data), transitions=data), None
        source = load_steps(name_or_path, task=task, columns=columns)
    except UserError as error:
        return Findings(errors=(_unreadable(error, str(name_or_path)),)), None
    info = source.info
    findings = validate(source.steps, name=info.name, source=info.source, task=source.task)
    said = tuple(Finding("reader", info.source, None, None, text) for text in info.warnings)
    return replace(findings, warnings=(*said, *findings.warnings)), source


def validate(steps: Steps, *, name: str, source: str, task: Task | None = None) -> Findings:
    """Look for every known defect in logged steps, as they come from `load_steps`.

    Args:
        steps: the log; it may hold anything that has the right shapes.
        name: the dataset's name.
        source: its file or id, for the findings.
        task: its task, where known; some rules need the episode limit or the reward.

    Returns:
        One finding per rule and array, at the first row that shows it.

    Raises:
        UserError: if the arrays do not fit together.
    """
    found = inspect(steps, source=source, task=task)
    if not found.ok:
        return found
    try:
        info = DataInfo(name, source=source)
        data = Transitions.from_steps(steps, info, task=task, action_clip=None)
    except UserError as error:
        nothing = Finding("no_transitions", source, None, None, f"{error.what} {error.fix}".strip())
        return replace(found, errors=(nothing,))
    return replace(found, transitions=data)


def inspect(steps: Steps, *, source: str, task: Task | None = None) -> Findings:
    """What `validate` finds, except whether any transitions come out, which are not made."""
    log = Log.of(steps.checked(source), task)
    found = [item for rule in RULES for item in rule(log)]
    errors, warnings = (
        tuple(
            Finding(rule, source, row, column, message.strip())
            for severity, rule, row, column, message in found
            if severity == kind
        )
        for kind in ("error", "warning")
    )
    return Findings(errors, warnings)


def _unreadable(error: UserError, name: str) -> Finding:
    # The readers say the row and the column in words.
    row = re.search(r"\brow (\d+)", error.what)
    column = re.search(r"`(\w+)`|column '([^']+)'", error.what)
    return Finding(
        "non_finite" if "not a finite number" in error.what else "unreadable",
        error.where or name,
        int(row[1]) if row else None,
        (column[1] or column[2]) if column else None,
        f"{error.what} {error.fix}".strip(),
    )
