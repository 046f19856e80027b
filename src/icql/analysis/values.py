"""What several critics say of the same logged pairs (s, a), beside an oracle and the outcomes.

The paper compares ICQL and IQL with the critics of online SAC this way. Critics may be on scaled
rewards and an oracle on others: only how they vary together means something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.stats import pearsonr, spearmanr

from icql.data.pictures import returns_at, state_map
from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.graph.critic import GraphCritic
from icql.training.run_folder import RunFolder
from icql.training.trained import load_critic
from icql.training.trained_critic import TrainedCritic

Doubles = NDArray[np.float64]
BLOCK = 512  # pairs at once: their contexts are in memory


@dataclass(frozen=True)
class CriticValues:
    """What the critics of one run say."""

    label: str
    run: str
    values: Doubles  # (seeds, N)
    by_layer: Doubles | None  # (L, N) of the first seed's first critic, where it has layers
    c: Mapping[str, Doubles] | None  # statistics of C by layer, each (L,), where it has them


@dataclass(frozen=True)
class Values:
    """The pairs, and what is said of them."""

    name: str  # of the data
    rows: NDArray[np.int64]  # (N,)
    plane: Doubles  # (N, 2), the map of their states
    outcome: Doubles  # (N,), discounted return that followed
    oracle: Doubles | None  # (N,)
    critics: tuple[CriticValues, ...]

    @property
    def truth(self) -> tuple[str, Doubles]:
        """What the critics are compared with, and its name."""
        if self.oracle is None:
            return "the logged outcome", self.outcome
        return "the oracle", self.oracle


def values_of(
    runs: Sequence[str | Path],
    *,
    count: int = 2_000,
    oracle: str | Path | None = None,
    dataset: str | Path | None = None,
) -> Values:
    """Ask the critics of `runs` for Q of `count` logged pairs, evenly spread over their data.

    Args:
        runs: finished runs with critics, on the same data.
        count: pairs at most.
        oracle: a snapshot of SAC, as `icql data collect` keeps it.
        dataset: where the data is now, if not where it was.

    Raises:
        UserError: no run, runs on different data, a run without a critic, an oracle that does not
            fit the data, or a count below 3.
    """
    if not runs or count < 3:
        what = "name at least one run folder." if not runs else f"{count} pairs are too few."
        raise UserError(what, where="icql analyse", fix="Take 3 or more." if runs else "")
    found = [load_critic(run, dataset=dataset) for run in runs]
    data = found[0].data
    for run, critic in zip(runs, found, strict=True):
        if critic.data.content_hash() != data.content_hash():
            raise UserError(f"was made on other data than {runs[0]}.", where=str(run))
    rows = np.unique(np.linspace(0, len(data) - 1, min(count, len(data))).astype(np.int64))
    labels = _labels([Path(run) for run in runs])
    return Values(
        name=data.info.name,
        rows=rows,
        plane=state_map(data.states[rows]),
        outcome=returns_at(rows, data.rewards, data.episode),
        oracle=None if oracle is None else _asked_of(oracle, data, rows),
        critics=tuple(
            ask(label, str(run), critic, rows)
            for label, run, critic in zip(labels, runs, found, strict=True)
        ),
    )


def agreement(values: Doubles, truth: Doubles) -> dict[str, list[float]]:
    """Pearson's and Spearman's correlation of each seed's values (seeds, N) with `truth` (N,).

    NaN where either does not vary at all.
    """

    def each(measure: Any) -> list[float]:
        flat = np.ptp(truth) == 0
        return [
            float("nan") if flat or np.ptp(own) == 0 else float(measure(own, truth).statistic)
            for own in values
        ]

    return {"pearson": each(pearsonr), "spearman": each(spearmanr)}


def c_statistics(c: NDArray[Any]) -> dict[str, Doubles]:
    """Of matrices C_ℓ (…, L, d, d): what each layer has on average, each (L,).

    spectral: the largest singular value, which says how far a TD step can go; frobenius: the size
    of all entries; diagonal: the mean of the diagonal, a step size as in C = α·I; off: the root
    mean square of the other entries.
    """
    c = np.asarray(c, np.float64)
    size = c.shape[-1]
    diagonal = np.diagonal(c, axis1=-2, axis2=-1)
    whole = np.square(c).sum((-2, -1))
    apart = np.sqrt(np.maximum(whole - np.square(diagonal).sum(-1), 0) / max(size * (size - 1), 1))
    found = {
        "spectral": np.linalg.norm(c, 2, axis=(-2, -1)),
        "frobenius": np.sqrt(whole),
        "diagonal": diagonal.mean(-1),
        "off": apart,
    }
    return {name: x.reshape(-1, c.shape[-3]).mean(0) for name, x in found.items()}


def ask(
    label: str, run: str, critic: TrainedCritic | GraphCritic, rows: NDArray[np.int64]
) -> CriticValues:
    """What the critics of one run say of these rows of their data."""
    data = critic.data
    parts = [rows[i : i + BLOCK] for i in range(0, len(rows), BLOCK)]
    if isinstance(critic, GraphCritic):
        own = np.concatenate([critic.q(data.states[p], data.actions[p]) for p in parts])
        return CriticValues(label, run, own[None], None, None)
    every = [critic.every_q(data.states[p], data.actions[p]) for p in parts]
    values = np.concatenate(every, axis=1).astype(np.float64)
    by_layer, statistics, td = None, None, critic.critics.td
    if td is not None:
        traces = [critic.trace(data.states[p], data.actions[p]) for p in parts]
        by_layer = np.concatenate(traces, axis=1).astype(np.float64)
        statistics = c_statistics(np.asarray(td.preconditioners))
    return CriticValues(label, run, values, by_layer, statistics)


def _asked_of(oracle: str | Path, data: Transitions, rows: NDArray[np.int64]) -> Doubles:
    from icql.online import sac_oracle

    snapshot = sac_oracle(oracle)
    inputs = snapshot.observation_dim
    if (inputs, snapshot.policy.action_dim) != (data.observation_dim, data.action_dim):
        raise UserError(
            f"knows {inputs} observations and {snapshot.policy.action_dim} actions; the data has "
            f"{data.observation_dim} and {data.action_dim}.",
            where=str(oracle),
        )
    s, a = (jnp.asarray(np.asarray(x[rows], np.float32)) for x in (data.states, data.actions))
    return np.asarray(snapshot.q(s, a), np.float64)


def _labels(runs: Sequence[Path]) -> list[str]:
    """The algorithms, with the folders of those that two runs have."""
    algos = [str(RunFolder.open(run).result()["algo"]) for run in runs]
    places = [run.resolve().parts[-2:] for run in runs]
    if len({place[-1] for place in places}) == len(places):
        places = [place[-1:] for place in places]
    names = ["/".join(_cut(part) for part in place) for place in places]
    several = [algos.count(algo) > 1 for algo in algos]
    return [
        f"{algo} in {name}" if more else algo
        for algo, name, more in zip(algos, names, several, strict=True)
    ]


def _cut(name: str) -> str:
    """A folder's name, short enough for a title."""
    return name if len(name) <= 20 else f"{name[:8]}…"
