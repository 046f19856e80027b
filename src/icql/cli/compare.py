"""`icql compare`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from icql.cli.options import Options, Result
from icql.errors import UserError
from icql.files import atomic
from icql.settings.grid import say_settings
from icql.training.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Compare(Options):
    """Put finished runs of one task side by side: final scores with their intervals.

    The score of a run is the mean over its training seeds; ± is half of Student's 95 % interval
    over seeds. Intervals of one seed do not exist, and runs that differ in updates, episodes or
    data are no fair comparison: both are said.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders."""
    out: Path | None = None
    """Also draw the scores (.png), or write the report that suites get: curves, intervals,
    probability of improvement, settings, as a page (.html) or tables (.md, .tex)."""

    def files_written(self) -> Iterable[Path]:
        """The picture or the report."""
        return () if self.out is None else (self.out,)

    def execute(self) -> Result:
        """Read, show and draw."""
        rows = [row for run in self.runs for row in _rows(run)]
        if not rows:
            raise UserError("name at least one run folder.", where="icql compare")
        _tell_apart(rows)
        for one in sorted({row["task"] for row in rows}):
            same = [row for row in rows if row["task"] == one]
            self.say(f"{one}: {_episodes(same)}")
            for row in same:
                half = "      " if row["half"] is None else f"± {row['half']:<4.1f}"
                text = f"  {row['label']:<28} {row['mean']:6.1f} {half}  {row['seeds']} seed(s), "
                self.say(f"{text}{row['updates']:,} updates")
            if same[0]["behaviour"] is not None:
                self.say(f"  {'mean of the data':<28} {same[0]['behaviour']:6.1f}")
        warnings = _unfair(rows)
        for warning in warnings:
            self.say(f"note: {warning}")
        if self.out is not None:
            self._write(rows, self.out)
        return {"runs": rows, "notes": warnings}

    def _write(self, rows: list[dict[str, Any]], out: Path) -> None:
        if out.suffix == ".png":
            _draw(rows, out)
        elif out.suffix in (".html", ".md", ".tex"):
            from icql.bench.compared import report_of
            from icql.bench.report import write_report

            write_report(report_of(self.runs, maps=out.suffix == ".html"), out)
        else:
            raise UserError(
                f"must end in .png, .html, .md or .tex, not {out.suffix!r}.", where="--out"
            )
        self.say(f"{'picture' if out.suffix == '.png' else 'report'}: {out}")


def _rows(run: Path) -> list[dict[str, Any]]:
    """One row for each combination of settings that a run has scores of."""
    from icql.evaluation.scores import summary

    folder = RunFolder.open(run)
    result = folder.result()
    if result["score"] is None:
        if result["task"] is None:
            by_log = "Compare by the log: icql select RUN RUN"
            raise UserError("has no score, for it has no task to play.", where=str(run), fix=by_log)
        fix = "Train with --episodes 20; 'icql evaluate' shows scores and does not keep them."
        raise UserError("has no score: no episodes were played.", where=str(run), fix=fix)
    rows = []
    for one in result["score"].get("combinations", [result["score"]]):
        statistics = summary(one["per_seed"])
        interval = statistics["ci95"]
        rows.append(
            {
                "run": str(run),
                "label": f"{result['algo']} {say_settings(one.get('settings', {}))}".rstrip(),
                "task": result["task"],
                "data_hash": result["data_hash"],
                "mean": statistics["mean"],
                "half": None if interval is None else (interval[1] - interval[0]) / 2,
                "per_seed": one["per_seed"],
                "seeds": statistics["n"],
                "episodes": len(one["returns"][0]),
                "updates": result["steps"],
                "behaviour": result["behaviour_score"],
            }
        )
    return rows


def _tell_apart(rows: list[dict[str, Any]]) -> None:
    """Name the folder of rows that are called the same on one task."""
    names = Counter((row["task"], row["label"]) for row in rows)
    for row in rows:
        if names[row["task"], row["label"]] > 1:
            row["label"] += f" in {row['run']}"


def _episodes(rows: list[dict[str, Any]]) -> str:
    counts = sorted({row["episodes"] for row in rows})
    return f"final scores, {' or '.join(map(str, counts))} episodes per seed, ± 95 % over seeds"


def _unfair(rows: list[dict[str, Any]]) -> list[str]:
    """What keeps the numbers from being compared as they stand."""
    found = []
    for name, what in (
        ("task", "tasks"),
        ("data_hash", "data"),
        ("updates", "numbers of updates"),
        ("episodes", "numbers of episodes"),
    ):
        if len({row[name] for row in rows}) > 1:
            found.append(f"the runs have different {what}.")
    if any(row["seeds"] == 1 for row in rows):
        found.append("a single seed has no interval.")
    return found


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    from icql.data.pictures import BLUE, GREY, figure

    drawn, (ax,) = figure(6.2, 0.9 + 0.42 * len(rows))
    for place, row in enumerate(reversed(rows)):
        ax.plot(row["per_seed"], [place] * row["seeds"], "o", color=BLUE, alpha=0.35, ms=4)
        ax.errorbar(row["mean"], place, xerr=row["half"] or 0, fmt="D", color=BLUE, capsize=3)
    ax.set_ylim(-0.7, len(rows) - 0.3)
    ax.set_xlim(left=min(0.0, *(score for row in rows for score in row["per_seed"])))
    ax.set_yticks(range(len(rows)), [row["label"] for row in reversed(rows)])
    if rows[0]["behaviour"] is not None:
        ax.axvline(rows[0]["behaviour"], color=GREY, ls="--", label="mean of the data")
        ax.legend(frameon=False, loc="lower right")
    ax.set_xlabel("normalised score (mean and 95 % interval over seeds; dots: seeds)")
    ax.set_title(f"{rows[0]['task']}, final scores", loc="left")
    with atomic(path) as temporary:
        drawn.savefig(temporary, dpi=110, format="png")
