"""A policy file, from a policy and its alarm to checked bytes."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql._version import __version__
from icql.errors import UserError
from icql.evidence.still_limits import fit_still_limits
from icql.export.agreement import Original, compare, made_up, probes
from icql.export.alarm_nodes import alarm_nodes
from icql.export.card import FORMAT, LIMITS, as_markdown
from icql.export.nodes import BOOL, DOUBLE, FLOAT, INT64, Nodes
from icql.export.policy_nodes import policy_nodes
from icql.export.seal import seal, verify
from icql.files import atomic

MEASURED = {
    "standardised": "each column divided by its own spread in the log",
    "learned": "on features of a small network that predicts the logged action and the change",
}
USED = ("jax", "numpy", "onnx", "onnxruntime")


def export_file(
    path: Path,
    original: Original,
    facts: Mapping[str, Any],
    logged: NDArray[np.float32] | None,
) -> dict[str, Any]:
    """Write a policy file and its card beside it; nothing, where the file differs from Python.

    `facts` are those of the card that only the run knows; `logged` are states of its data, None
    where it is not at hand. Returns the card.
    """
    states = made_up(original.policy) if logged is None else probes(logged)
    model = build_model(original)
    card = {**_card(original), **facts}
    which = "made-up states" if logged is None else "states, logged ones and perturbed ones"
    found = compare(model.SerializeToString(), original, states)
    card["check"] = {**found, "which": which}
    content, text = seal(model, card), as_markdown(card)
    verify(content, "export")
    try:
        with atomic(path) as file, atomic(path.with_suffix(".md")) as page:
            file.write_bytes(content)
            page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot be written ({error.strerror}).", where=str(path)) from error
    return card


def build_model(original: Original) -> Any:
    """The ONNX model, without a card."""
    graph, (width,) = Nodes(), original.policy.mean.shape
    action = policy_nodes(graph, original.policy, original.signals, "state")
    if original.signals.choices:
        graph.output("action", action, INT64, ["rows"])
    else:
        graph.output("action", action, FLOAT, ["rows", original.actions])
    if original.alarm is not None:
        distance, rings, limit = alarm_nodes(graph, original.alarm, "state")
        graph.output("distance", distance, DOUBLE, ["rows"])
        graph.output("alarm", rings, BOOL, ["rows"])
        graph.output("limit", limit, DOUBLE, [])
    return graph.model("state", width)


def check_target(path: Path) -> None:
    """Refuse a name that is not that of an ONNX file."""
    if path.suffix != ".onnx":
        raise UserError("must end in .onnx.", where=str(path))
    if path.is_dir():
        raise UserError("is a folder.", where=str(path))


def _card(original: Original) -> dict[str, Any]:
    """What the policy and the alarm say themselves."""
    alarm, signals = original.alarm, original.signals
    return {
        "format": FORMAT,
        "columns": original.policy.mean.shape[0],
        "actions": original.actions,
        "signals": signals.as_json(),
        "choices": list(signals.choices),
        "limits": list(LIMITS),
        "exported_with": {"icql": __version__} | {name: metadata.version(name) for name in USED},
        "alarm": None
        if alarm is None
        else {
            "rate": alarm.rate,
            "worst": alarm.worst,
            "limit": alarm.limit,
            "states": len(alarm.kept),
            "space": alarm.retriever.settings.space,
            "measured": MEASURED[alarm.retriever.settings.space],
            "still": fit_still_limits(alarm.log, rate=alarm.rate).as_json(),
        },
    }
