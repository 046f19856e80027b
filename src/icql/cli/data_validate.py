"""`icql data validate`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from icql.cli.data_shared import DatasetOptions
from icql.data.datasets import validate_dataset
from icql.data.validation.findings import Findings
from icql.errors import UserError
from icql.progress import Display

DESCRIPTION = """Look for defects in logged data before anything is trained.

Errors stop (exit code 2) and name file, row and column; warnings say what follows if they are
left. With --report DIR, a page with the findings and pictures is written to DIR/report.html."""


@dataclass(frozen=True, kw_only=True)
class Validate(DatasetOptions):
    """The options of `icql data validate`."""

    report: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Write a report page into this folder."""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Parse, validate, print; leaves with code 2 where there are errors."""
    options = tyro.cli(Validate, prog="icql data validate", description=DESCRIPTION, args=argv)
    findings, source = validate_dataset(options.dataset, task=options.task, columns=options.columns)
    result = findings.as_json()
    if options.report is not None:
        from icql.data.validation.page import write_report  # Matplotlib only where it is asked for

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
            print(f"{kind} {finding.rule}: {', '.join(finding.place)}: {finding.message}")
    if findings.ok:
        warned = f", {len(findings.warnings)} warning(s)" if findings.warnings else ""
        print(f"ok: {result['transitions']:,} transitions{warned}")
    else:
        print(f"not fit for training: {len(findings.errors)} error(s)")
    if "report" in result:
        print(f"report: {result['report']}")
