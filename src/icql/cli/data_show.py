"""`icql data show`."""

from __future__ import annotations

from typing import Any

import numpy as np
import tyro

from icql.cli.data_shared import DatasetOptions
from icql.data.datasets import load_dataset
from icql.data.tasks import get_task
from icql.data.transitions import Transitions

DESCRIPTION = """Show what a dataset holds: the transitions that training would see, and the returns
of its whole episodes."""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Parse, load, print."""
    options = tyro.cli(DatasetOptions, prog="icql data show", description=DESCRIPTION, args=argv)
    data = load_dataset(options.dataset, task=options.task, columns=options.columns)
    facts = summary(data)
    if options.json:
        return facts
    for key, value in facts.items():
        if key != "warnings":
            print(f"{key:<16} {_text(value)}")
    for warning in facts["warnings"]:
        print(f"warning          {warning}")
    return None


def summary(data: Transitions) -> dict[str, Any]:
    """What `icql data show` says of a dataset; returns and lengths are of whole episodes."""
    info = data.info
    returns, lengths = np.asarray(info.episode_returns), np.asarray(info.episode_lengths)
    task = None if info.task is None else get_task(info.task)
    return {
        "name": info.name,
        "source": info.source,
        "task": info.task,
        "transitions": len(data),
        "episodes": data.episodes(),
        "observation_dim": data.observation_dim,
        "action_dim": data.action_dim,
        "dropped": info.dropped,
        "return_mean": float(returns.mean()) if returns.size else None,
        "return_min": float(returns.min()) if returns.size else None,
        "return_max": float(returns.max()) if returns.size else None,
        "length_mean": float(lengths.mean()) if lengths.size else None,
        "behaviour_score": None if task is None else task.behaviour_score(info),
        "data_hash": data.content_hash(),
        "warnings": list(info.warnings),
    }


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "unknown"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
