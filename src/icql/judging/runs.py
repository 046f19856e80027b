"""Runs before the judge: one against the log or another, or the best of several."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from icql.errors import UserError
from icql.evaluation.rollout import act_all
from icql.files import default_cache_dir, file_hash
from icql.judging.log import Log
from icql.judging.opinion import Opinion, form_opinions
from icql.judging.verdict import decide
from icql.nn.policies import MemoryPolicy
from icql.progress import Display
from icql.settings.grid import say_settings
from icql.settings.judge import JudgeSettings
from icql.training.plan import Plan
from icql.training.run_folder import RunFolder
from icql.training.trained import data_of, load_policy, run_discount

BLOCK = 2**15  # rows that policies act on at once
SPREAD = (
    "importance sampling judges the policy with the fitted behaviour model's spread around its "
    "actions, because the policy itself is deterministic."
)
FOLLOWED = (
    "importance sampling counts an episode until it first chooses otherwise than the policy does."
)


@dataclass(frozen=True)
class Candidate:
    """Policies of one run that differ in their training seed alone."""

    run: Path
    folder: RunFolder
    plan: Plan
    settings: dict[str, float]  # its place in the run's grid
    policies: Any  # stacked along a leading axis
    seeds: tuple[int, ...]

    @property
    def label(self) -> str:
        """For people: the folder, and the place in its grid."""
        return f"{self.run} {say_settings(self.settings)}".rstrip()

    def act(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Actions (M, N, act) of all its policies."""
        found = []
        for i in range(0, len(states), BLOCK):
            block = np.asarray(states[i : i + BLOCK], np.float32)
            several = jnp.broadcast_to(block, (len(self.seeds), *block.shape))
            found.append(np.asarray(act_all(self.policies, several)))
        return np.concatenate(found, 1)


def candidates_of(run: str | Path) -> list[Candidate]:
    """The combinations of a run's grid; one, where it has none.

    Raises:
        UserError: there is no such run, it is not finished, or its policies have a memory.
    """
    folder = RunFolder.open(run)
    plan, trained = Plan.read(folder), load_policy(run)
    if isinstance(trained.policies.policy, MemoryPolicy):
        raise UserError(
            f"{plan.algo} remembers its episode: what it does in a logged state depends on what "
            "it did before, and cannot be known from the log.",
            where=str(run),
            fix="Judge a run whose policy acts on the state alone.",
        )
    found = []
    places = enumerate(trained.members)
    for settings, group in groupby(places, key=lambda pair: dict(pair[1].settings)):
        own = [i for i, _ in group]
        policies = jax.tree.map(
            lambda x, own=own: x[np.array(own)] if eqx.is_array(x) else x, trained.policies
        )
        seeds = tuple(trained.members[i].seed for i in own)
        found.append(Candidate(Path(run), folder, plan, settings, policies, seeds))
    return found


def judge_run(
    run: str | Path,
    *,
    against: str | Path | None = None,
    dataset: str | Path | None = None,
    discount: float | None = None,
    settings: JudgeSettings | None = None,
    display: Display,
) -> dict[str, Any]:
    """Judge a run against its log, or against another run on the same log; returns a report.

    Raises:
        UserError: a run is not finished, is a grid, has policies with a memory, or was made on
            other data.
    """
    both = [candidates_of(name) for name in (run, against) if name is not None]
    for found in both:
        if len(found) > 1:
            raise UserError(
                f"is a grid of {len(found)} combinations.",
                where=str(found[0].run),
                fix=f"Choose among them: icql select {found[0].run}",
            )
    chosen = [found[0] for found in both]
    log, settings = _prepared(chosen, dataset, discount, settings, display)
    opinions = _opinions(log, chosen, settings, display)
    other = opinions[1] if against is not None else None
    report = _report(chosen[0], opinions[0], log, other)
    if other is not None:
        report["against"] = _report(chosen[1], other, log)
    else:
        _record(chosen[0].folder, report, display)
    return report


def _record(folder: RunFolder, report: dict[str, Any], display: Display) -> None:
    """Keep a verdict beside the run: an exported policy tells it (docs/export.md)."""
    judged = file_hash(folder.policy_path)  # a run that goes on has other weights
    try:
        folder.write_judged({**report, "policy_hash": judged})
    except OSError as error:  # a folder that may only be read can still be judged
        display.say(f"note: the verdict is not recorded in {folder.path} ({error.strerror})")


def select_run(
    runs: Sequence[str | Path],
    *,
    dataset: str | Path | None = None,
    discount: float | None = None,
    settings: JudgeSettings | None = None,
    display: Display,
) -> dict[str, Any]:
    """Judge all candidates side by side and say which has the highest estimate.

    Candidates about which nothing can be told do not win. Whether the winner's difference to each
    other one is shown, is said.
    """
    found = [one for run in runs for one in candidates_of(run)]
    if len(found) < 2:
        raise UserError(
            "there is nothing to choose from.",
            where="icql select",
            fix="Name several runs, or one with a grid.",
        )
    log, settings = _prepared(found, dataset, discount, settings, display)
    opinions = _opinions(log, found, settings, display)
    reports = [_report(one, said, log) for one, said in zip(found, opinions, strict=True)]
    able = [i for i, report in enumerate(reports) if report["verdict"] != "cannot be told"]
    if not able:
        none = "of no candidate can be told how good it is."
        return {"winner": None, "shown": False, "reasons": [none], "candidates": reports}
    best = max(able, key=lambda i: opinions[i].estimate)
    reasons, close = [], []
    for i in able:
        if i == best:
            continue
        verdict, why = decide(opinions[best].evidence(opinions[i]), found[i].label)
        reports[i]["winner_is"] = verdict
        if verdict != "better":
            close.append(found[i].label)
            reasons.append(f"not shown to be better than {found[i].label}: {' '.join(why)}")
    left_out = [found[i].label for i in range(len(found)) if i not in able]
    if left_out:
        reasons.append(f"left out, because nothing can be told of them: {', '.join(left_out)}.")
    if reports[best]["verdict"] != "better":
        reasons.append(
            f"the winner itself is {reports[best]['verdict']}"
            f"{'' if reports[best]['verdict'] == 'worse' else ' to be better'} beside the log."
        )
    return {
        "winner": {"run": str(found[best].run), "settings": found[best].settings},
        "label": found[best].label,
        "shown": not close and len(able) > 1,
        "not_shown_against": close,
        "reasons": reasons,
        "candidates": reports,
    }


def _prepared(
    found: Sequence[Candidate],
    dataset: str | Path | None,
    discount: float | None,
    settings: JudgeSettings | None,
    display: Display,
) -> tuple[Log, JudgeSettings]:
    """The log that all candidates were trained on, and the settings with their discount."""
    first = found[0].plan
    gamma = run_discount(first) if discount is None else discount
    settings = dataclasses.replace(settings or JudgeSettings(), discount=gamma)
    if discount is None and len({run_discount(one.plan) for one in found}) > 1:
        display.say(f"note: the runs have different discounts; all are judged with {gamma:g}")
    data = data_of(found[0].folder, dataset=dataset)
    for one in found[1:]:
        one.folder.check_data(data)
    return Log.of(data), settings


def _opinions(
    log: Log, found: Sequence[Candidate], settings: JudgeSettings, display: Display
) -> list[Opinion]:
    named = [(one.label, one.act) for one in found]
    return form_opinions(log, named, settings, display, cache_dir=default_cache_dir())


def _report(
    one: Candidate, said: Opinion, log: Log, other: Opinion | None = None
) -> dict[str, Any]:
    """What `--json` prints of one candidate."""
    s = said.settings
    reference = "the log" if other is None else other.label
    difference, around = said.difference(other)
    verdict, reasons = decide(said.evidence(other), reference)
    if other is not None and verdict != "cannot be told":
        # what cannot be told of the other cannot be told of the difference
        second, why = decide(other.evidence(), "the log")
        if second == "cannot be told":
            verdict, reasons = second, [f"{other.label}: {reason}" for reason in why]
    cut = int(log.cut.sum())
    notes = [
        f"{len(log)} episodes; {round(100 * s.held_out)} % of them were held out of what is fitted "
        "here, but the policy was trained on all.",
        FOLLOWED if log.data.info.signals.choices else SPREAD,
    ]
    if cut:
        notes.append(
            f"{cut} episodes have no logged end; their returns go on with fitted Q evaluation "
            "of the behaviour."
        )
    return _plain(
        {
            "run": str(one.run),
            "algo": one.plan.algo,
            "settings": one.settings,
            "verdict": verdict,
            "estimate": said.estimate,
            "interval": said.interval,
            "behaviour": float(said.returns.mean()),
            "reference": reference,
            "difference": difference,
            "difference_interval": around,
            "effective_sample_size": said.sample_size,
            "reasons": reasons,
            "notes": notes,
            "discount": s.discount,
            "episodes": len(log),
            "rows": len(log.data),
            "data_hash": one.folder.manifest["data_hash"],
            "seeds": list(one.seeds),
            "methods": {
                "fqe": {
                    "estimate": said.estimate,
                    "interval": said.interval,
                    "per_network": said.values.mean(1),
                    "per_policy": said.per_policy,
                    "behaviour_miss": said.miss,
                    "residual": said.residual,
                    "moved": said.moved,
                    "possible": said.possible,
                    "updates": s.updates,
                },
                **said.methods,
            },
            "held_out": said.held_out,
            "far": {"policy": said.far, "logged": said.far_logged},
        }
    )


def _plain(value: Any) -> Any:
    """JSON's own types; what is not finite is null."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(inner) for inner in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value
