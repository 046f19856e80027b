"""`icql data validate`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from icql.data.findings import Findings
from icql.data.validation import validate_dataset
from icql.errors import UserError
from icql.progress import Display

DESCRIPTION = """Look for defects in logged data before anything is trained.

Errors stop (exit code 2) and name file, row and column; warnings say what follows if they are
left. With --report DIR, a page with the findings and pictures is written to DIR/report.html."""


@dataclass(frozen=True)
class Validate:
    """The options of `icql data validate`."""

    dataset: tyro.conf.Positional[str]
    """Name of a dataset, or path of a file or folder."""
    task: str | None = None
    """Task of the data, where its name does not tell."""
    columns: Path | None = None
    """File that says which columns of a CSV or Parquet log are what."""
    report: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Write a report page into this folder."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object on standard output."""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Parse, validate, print; leaves with code 2 where there are errors."""
    options = tyro.cli(Validate, prog="icql data validate", description=DESCRIPTION, args=argv)
    findings, source = validate_dataset(options.dataset, task=options.task, columns=options.columns)
    result = findings.as_json()
    if options.report is not None:
        from icql.data.report import write_report  # Matplotlib only where it is asked for

        with Display().work("report", 1) as work:
            page = write_report(options.report, options.dataset, findings, source)
            work.update(1)
        result["report"] = str(page)
    if options.json and findings.ok:
        return result
    if options.json:
        print(json.dumps(result, allow_nan=False))
    else:
        _print(findings, result)
    if not findings.ok:
        raise SystemExit(UserError.exit_code)
    return None


def _print(findings: Findings, result: dict[str, Any]) -> None:
    for kind, group in (("error", findings.errors), ("warning", findings.warnings)):
        for finding in group:
            row = "" if finding.row is None else f", row {finding.row}"
            column = "" if finding.column is None else f", {finding.column}"
            print(f"{kind} {finding.rule}: {finding.file}{row}{column}: {finding.message}")
    if findings.ok:
        warned = f", {len(findings.warnings)} warning(s)" if findings.warnings else ""
        print(f"ok: {result['transitions']:,} transitions{warned}")
    else:
        print(f"not fit for training: {len(findings.errors)} error(s)")
    if "report" in result:
        print(f"report: {result['report']}")
