"""The card of a policy file, for people: what it is, what it was made of, and what it cannot do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

FORMAT = 1
Card = Mapping[str, Any]

LIMITS = (
    "It answers each state by itself: nothing is remembered from one call to the next. To tell a "
    "stuck sensor, an episode's last states have to be looked at together.",
    "The score and the verdict are about the data it was trained on; where the plant has changed "
    "since, they say nothing.",
    "The alarm says that nothing like a state was logged, not that a state is dangerous; without "
    "an alarm, a state may still be one in which the logged actions were wrong.",
    "A state with a number that is not finite gets no action (NaN, or the choice -1).",
)


def as_markdown(card: Card) -> str:
    """The card as a page."""
    return "\n".join((*_head(card), *_signals(card), *_alarm(card), *_tests(card), *_rest(card)))


def _head(card: Card) -> Iterator[str]:
    data, scores = card["data"], card["scores"]
    yield f"# Policy: {card['algo']} on {data['name']}"
    yield ""
    yield f"- Algorithm: `{card['algo']}`, {card['run']['steps']:,} updates, {card['member']}"
    yield f"- Data: {data['name']}, SHA-256 `{data['hash']}`"
    yield f"- Weights: SHA-256 `{card['policy_hash']}`"
    if scores is None:
        yield "- Score: none, the run was not played in an environment"
    else:
        logged = (
            "" if scores["logged"] is None else f" (the logged behaviour: {_n(scores['logged'])})"
        )
        yield f"- Score in the environment of {card['task']}: {_n(scores['score'])}{logged}"
    verdict = card["verdict"]
    if verdict is None:
        yield "- Verdict of `icql judge`: not recorded"
    else:
        around = verdict["difference_interval"]
        beside = "" if around is None else f", 95 % interval {_n(around[0])} to {_n(around[1])}"
        apart = verdict["difference"]
        gain = "" if apart is None else f"; discounted return beside the log: {_n(apart)}{beside}"
        seeds = verdict["seeds"] or ()
        whose = f" on seeds {', '.join(map(str, seeds))} together" if len(seeds) > 1 else ""
        yield f"- Verdict of `icql judge`{whose}: {verdict['verdict']}{gain}"
        yield from (f"  - {reason}" for reason in verdict["reasons"])
    yield from (f"- Warning of the training: {said}" for said in card["warnings"])


def _signals(card: Card) -> Iterator[str]:
    signals = card["signals"]
    yield from ("", "## What goes in", "")
    yield f"`state`: rows of {card['columns']} numbers (float32) in the log's units, in this order:"
    yield ""
    yield from _table(signals["observation"], signals["units"], card["columns"])
    yield from ("", "## What comes out", "")
    if card["choices"]:
        yield "`action`: the number of the choice (int64):"
        yield ""
        yield from (f"- {i}: {name}" for i, name in enumerate(card["choices"]))
        return
    units = "in the log's units" if signals["action_low"] else "in [-1, 1]"
    yield f"`action`: rows of {card['actions']} numbers (float32), {units}:"
    yield ""
    bounds = list(zip(signals["action_low"], signals["action_high"], strict=True))
    yield from _table(signals["action"], signals["units"], card["actions"], bounds)


def _table(
    names: list[str], units: Mapping[str, str], count: int, bounds: Any = None
) -> Iterator[str]:
    if not names and not bounds:
        yield "The log has no names for them."
        return
    yield "| column | name | unit |" + (" lowest | highest |" if bounds else "")
    yield "|---|---|---|" + ("---|---|" if bounds else "")
    for i in range(count):
        name = names[i] if names else "(no name)"
        ends = f" {_n(bounds[i][0])} | {_n(bounds[i][1])} |" if bounds else ""
        yield f"| {i} | {_cell(name)} | {_cell(units.get(name, ''))} |{ends}"


def _alarm(card: Card) -> Iterator[str]:
    alarm = card["alarm"]
    yield from ("", "## The alarm", "")
    if alarm is None:
        yield "None: the file was exported without one, and does not tell states unlike the log."
        return
    yield (
        f"`distance` (float64) is that from the nearest of {alarm['states']:,} logged states (of "
        f"{card['data']['rows']:,}), {alarm['measured']}. `alarm` (bool) rings above `limit`, "
        f"{_n(alarm['limit'])}. It does so in about {100 * alarm['rate']:g} % of the states of new "
        "episodes that are like the logged ones, and in at most "
        f"{100 * alarm['worst']:.2g} % if no logged episode is like another."
    )
    yield from _still(alarm["still"], card["signals"]["observation"])


def _still(still: Mapping[str, Any], names: list[str]) -> Iterator[str]:
    known = [(i, n) for i, n in enumerate(still["states"]) if n is not None]
    yield from ("", "## Sensors that are stuck", "")
    if not known:
        yield "Every column rested throughout some logged episode: to stand still says nothing."
        return
    yield (
        "One that stands still, number for number, for more states in a row than this; at most "
        f"about {100 * still['rate']:.2g} % of new episodes like the logged ones have any. Columns "
        "that are not listed rested throughout some logged episode."
    )
    yield from ("", "| column | name | states |", "|---|---|---|")
    yield from (f"| {i} | {_cell(names[i] if names else '(no name)')} | {n} |" for i, n in known)


def _tests(card: Card) -> Iterator[str]:
    check = card["check"]
    yield from ("", "## Checked when it was written", "")
    yield f"Run with onnxruntime on {check['states']:,} {check['which']}, beside the Python policy:"
    yield ""
    if "action_error" in check:
        yield f"- actions differ by at most {check['action_error']:.1g} of their range"
    else:
        yield f"- {check['choices_that_differ']} choices differ, all of them ties but for rounding"
    if "distance_error" in check:
        yield f"- distances differ by at most {check['distance_error']:.1g}, alarms do not"


def _rest(card: Card) -> Iterator[str]:
    yield from ("", "## Limits", "")
    yield from (f"- {limit}" for limit in card["limits"])
    yield from ("", "## Settings", "", "| setting | value |", "|---|---|")
    yield from (f"| {name} | {_cell(value)} |" for name, value in card["settings"].items())
    for title, key in (("trained", "trained_with"), ("exported", "exported_with")):
        yield from ("", f"## Versions it was {title} with", "")
        yield ", ".join(f"{name} {version}" for name, version in card[key].items())
    yield ""


def _cell(value: Any) -> str:
    """Text in a table: a name of a log may hold anything."""
    return " ".join(str(value).split()).replace("|", "\\|")


def _n(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
