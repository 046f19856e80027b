"""`icql judge` and `icql select`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from icql.cli.options import Flag, Options, Result
from icql.progress import Display
from icql.settings.judge import JudgeSettings


@dataclass(frozen=True, kw_only=True)
class _Judging(Options):
    """What both commands have in common."""

    dataset: str | None = None
    """Where the log is now, if not where it was when the run was made."""
    discount: float | None = None
    """γ of all values; by default the run's own, or 0.99."""
    updates: int = JudgeSettings.updates
    """Gradient steps of fitted Q evaluation."""
    seeds: int = JudgeSettings.seeds
    """Networks of fitted Q evaluation for every policy."""
    seed: int = JudgeSettings.seed
    """Of the split, the networks and the bootstrap."""
    held_out: float = JudgeSettings.held_out
    """The share of episodes that errors are measured on and nothing is fitted on."""
    no_graph: Flag = False
    """Do not ask the local critic, which has to find similar states of every row."""

    def settings(self) -> JudgeSettings:
        """What is said about fitting."""
        return JudgeSettings(
            updates=self.updates,
            seeds=self.seeds,
            seed=self.seed,
            held_out=self.held_out,
            graph=not self.no_graph,
        )


@dataclass(frozen=True, kw_only=True)
class Judge(_Judging):
    """Say from the log alone whether a run's policy is better than what was logged.

    Fitted Q evaluation estimates its discounted return from the logged start states; the verdict
    is about the difference to the logged returns, with a 95 % interval over episodes and networks.
    Importance sampling, doubly robust and the local critic stand beside it. docs/judging.md says
    what each number means and when not to believe it.
    """

    run: tyro.conf.Positional[Path]
    """Run folder."""
    against: Path | None = None
    """Compare with this run, made on the same data, instead of the log."""

    def folders_written(self) -> Iterable[Path]:
        """The run, which keeps what was said of it."""
        return (self.run,) if self.run.is_dir() else ()

    def execute(self) -> Result:
        """Judge and show."""
        from icql.judging.runs import judge_run

        report = judge_run(
            self.run,
            against=self.against,
            dataset=self.dataset,
            discount=self.discount,
            settings=self.settings(),
            display=Display(),
        )
        for line in _lines(report):
            self.say(line)
        return report


@dataclass(frozen=True, kw_only=True)
class Select(_Judging):
    """Choose among runs, or the combinations of a grid, by the estimate of `icql judge`.

    All are evaluated by the same networks on the same rows. Says where the winner's difference to
    another one is not shown.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, made on the same data."""

    def execute(self) -> Result:
        """Judge all and show the best."""
        from icql.judging.runs import select_run

        chosen = select_run(
            self.runs,
            dataset=self.dataset,
            discount=self.discount,
            settings=self.settings(),
            display=Display(),
        )
        for one in chosen["candidates"]:
            found = f"{_number(one['estimate']).strip()} {_around(one['interval'])}"
            self.say(f"{_label(one)}: {one['verdict']} beside the log, {found}")
        self.say(f"winner: {chosen.get('label', 'none')}")
        for reason in chosen["reasons"]:
            self.say(f"  {reason}")
        return chosen


def _lines(r: dict[str, Any]) -> list[str]:
    """A report for people."""
    size, far, held = r["effective_sample_size"], r["far"], r["held_out"]
    lines = [f"verdict: {r['verdict']}", *(f"  {reason}" for reason in r["reasons"]), ""]
    rows = [
        ("fitted Q evaluation", r["methods"]["fqe"], ""),
        ("corrected", r["methods"]["corrected"], "by its errors on logged steps"),
        ("importance sampling", r["methods"]["importance"], f"effective episodes {size:.1f}"),
        ("doubly robust", r["methods"]["doubly_robust"], f"effective episodes {size:.1f}"),
        ("local critic", r["methods"].get("local_critic"), ""),
    ]
    lines.append(f"discounted return from the log's start states (γ = {r['discount']:g})")
    lines.append(f"  {'logged':<22} {_number(r['behaviour'])}")
    lines += [
        f"  {name:<22} {_number(found['estimate'])}  {_around(found['interval'])}  {note}".rstrip()
        for name, found, note in rows
        if found is not None
    ]
    if far["policy"] is not None:
        lines.append(
            f"far from all logged actions at {100 * far['policy']:.0f} % of states "
            f"(logged ones: {100 * far['logged']:.0f} %)"
        )
    if held["explained"] is not None:
        lines.append(
            f"held-out episodes: TD error {held['td_error']:.3g} (explained variance "
            f"{held['explained']:.2f}), action error {held['action_error']:.3g}"
        )
    return [*lines, *(f"note: {note}" for note in r["notes"])]


def _label(report: dict[str, Any]) -> str:
    from icql.settings.grid import say_settings

    return f"{report['run']} {say_settings(report['settings'])}".rstrip()


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:10.4g}"


def _around(interval: list[float] | None) -> str:
    return "no interval" if interval is None else f"[{interval[0]:.4g}, {interval[1]:.4g}]"
