"""How far the judge is from exact values: icu-sepsis, a tabular task made from hospital data.

    pip install --no-deps icu-sepsis==2.0.1
    python benchmarks/judge_sepsis.py --episodes 1000 5000 --out sepsis.json

716 states, 25 choices, 1 for a patient who survives; states are the 47 measurements of the
package's cluster centres. Its transition probabilities are known, so that the value of a policy is
the solution of linear equations. The log is that of the package's clinicians, a share of whose
choices is replaced by chance. Judged are trained runs, and policies that are made from the known
probabilities so that qualities differ widely. Printed are the exact value beside what every method
says, rank correlations, how many intervals hold the truth, and the verdicts that are wrong.

The package is not imported, only its table is read: it would want `gym`, pandas and scikit-learn.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import icql
from icql.files import default_cache_dir
from icql.judging.log import Log
from icql.judging.opinion import Opinion, form_opinions
from icql.judging.runs import candidates_of
from icql.judging.verdict import decide
from icql.progress import Display
from icql.settings.judge import JudgeSettings
from judge_truth import kept, spearman

Floats = NDArray[np.float64]
ENDS = 3  # the last states: death, survival, and what follows
METHODS = ("fqe", "corrected", "doubly_robust", "importance", "local_critic")

# name, algorithm, updates
TRAINED = (
    ("cloning", "bc", 3000),
    ("cloning, 60 updates", "bc", 60),
    ("IQL", "iql", 3000),
    ("IQL, 300 updates", "iql", 300),
    ("CQL", "cql", 2000),
    ("icql-graph", "icql-graph", 3000),
)
# name, share of states in which the best choice is taken, and in which the worst is; else chance
MADE = (
    ("best", 1.0, 0.0),
    ("best in half of the states", 0.5, 0.0),
    ("chance", 0.0, 0.0),
    ("worst in half of the states", 0.0, 0.5),
    ("worst", 0.0, 1.0),
)


@dataclass(frozen=True)
class Tabular:
    """A task whose probabilities are known; its last `ENDS` states end an episode."""

    goes: Floats  # (S, A, S) probabilities
    paid: Floats  # (S, A, S) rewards
    starts: Floats  # (S,) probabilities
    experts: Floats  # (S, A) probabilities of the clinicians' choices
    features: NDArray[np.float32]  # (S, obs) of which a log tells; those that end are alike

    @property
    def live(self) -> int:
        """How many states do not end an episode; they are the first."""
        return len(self.starts) - ENDS

    @cached_property
    def rewards(self) -> Floats:
        """Expected reward (S, A) of a choice in a state that does not end an episode."""
        return np.asarray((self.goes[: self.live] * self.paid[: self.live]).sum(-1))

    def values(self, policy: Floats, discount: float) -> Floats:
        """Exact values (S,) of a policy (S, A) of probabilities: V = r + γ P V, solved."""
        n, pi = self.live, policy[: self.live]
        step = (pi[:, None] @ self.goes[:n, :, :n])[:, 0]
        solved = np.linalg.solve(np.eye(n) - discount * step, (pi * self.rewards).sum(1))
        return np.append(solved, np.zeros(ENDS))

    def value(self, policy: Floats, discount: float) -> float:
        """Exact discounted return of a policy, from the start states."""
        return float(self.starts @ self.values(policy, discount))

    def greedy(self, discount: float, sign: int) -> NDArray[np.int64]:
        """The best choice (S,) in every state, or with `sign` -1 the worst, by policy iteration."""
        chosen, hot = np.zeros(len(self.starts), np.int64), np.eye(self.experts.shape[1])
        while True:
            values = self.values(hot[chosen], discount)
            q = sign * (self.rewards + discount * self.goes[: self.live] @ values)
            # a choice is left only for a better one: choices that are alike would change for ever
            old = np.take_along_axis(q, chosen[: self.live, None], 1)[:, 0]
            better = np.append(q.max(1) > old + 1e-10, np.zeros(ENDS, np.bool_))
            if not better.any():
                return chosen
            chosen[better] = q.argmax(1)[better[: self.live]]

    def mixed(self, chance: float) -> Floats:
        """The clinicians (S, A), a share of whose choices is replaced by chance."""
        even = np.full(self.experts.shape, 1 / self.experts.shape[1])
        known = np.where(self.experts.sum(1, keepdims=True) > 0, self.experts, even)
        return (1 - chance) * known / known.sum(1, keepdims=True) + chance * even

    def made(self, best: float, worst: float, discount: float, seed: int) -> NDArray[np.int64]:
        """A choice (S,) for every state: the best, the worst or one by chance, in such shares."""
        rng = np.random.default_rng([seed, 1])
        where = rng.permutation(len(self.starts)) / len(self.starts)
        found = rng.integers(self.experts.shape[1], size=len(self.starts))
        found[where >= 1 - worst] = self.greedy(discount, -1)[where >= 1 - worst]
        found[where < best] = self.greedy(discount, 1)[where < best]
        return found

    def state_of(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """The number of the state (N,) of each row of features; of those that end any one."""
        known = {row.tobytes(): i for i, row in enumerate(np.asarray(self.features, np.float32))}
        return np.array([known[row.tobytes()] for row in np.asarray(rows, np.float32)])

    def follow(self, choices: NDArray[np.int64]) -> Callable[[Any], NDArray[np.float32]]:
        """A policy as the judge asks it: rows (N, obs) → one-hot (1, N, A)."""
        hot = np.eye(self.experts.shape[1], dtype=np.float32)
        return lambda rows: hot[choices[self.state_of(rows)]][None]

    def collect(self, policy: Floats, episodes: int, seed: int, longest: int = 500) -> Any:
        """Arrays of a log with so many episodes, in the names of our NPZ files."""
        rng = np.random.default_rng([seed, 0])

        def drawn(odds: Floats) -> NDArray[np.int64]:
            sums = np.cumsum(odds, 1)
            return np.asarray((rng.random((len(odds), 1)) * sums[:, -1:] >= sums).sum(1))

        s = drawn(np.broadcast_to(self.starts, (episodes, len(self.starts))))
        who, rows = np.arange(episodes), list[tuple[Any, ...]]()
        for step in range(longest):
            a = drawn(policy[s])
            then = drawn(self.goes[s, a])
            over = then >= self.live
            cut = np.full(len(s), step == longest - 1) & ~over
            rows.append((who, np.full(len(s), step), s, a, self.paid[s, a, then], then, over, cut))
            who, s = who[~over], then[~over]
            if not len(s):
                break
        who, step_, s, a, r, then, over, cut = (
            np.concatenate(column) for column in zip(*rows, strict=True)
        )
        order = np.lexsort((step_, who))
        return {
            "observations": self.features[s[order]],
            "actions": a[order],
            "rewards": r[order].astype(np.float32),
            "terminals": over[order],
            "timeouts": cut[order],
            "next_observations": self.features[then[order]],
        }


def installed() -> Tabular | None:
    """icu-sepsis, or None where the package is not installed."""
    spec = util.find_spec("icu_sepsis")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0])
    with np.load(folder / "envs" / "assets" / "dynamics.npz") as file:
        return Tabular(
            goes=file["tx_mat"],
            paid=file["r_mat"],
            starts=file["d_0"],
            experts=file["expert_policy"],
            features=file["state_cluster_centers"].astype(np.float32),
        )


def judged(said: Opinion, truth: float, logged: float) -> dict[str, Any]:
    """One policy: the truth beside what every method says; `logged` is the behaviour's truth."""
    verdict, reasons = decide(said.evidence(), "the log")
    methods = {"fqe": {"estimate": said.estimate, "interval": said.interval}, **said.methods}
    found: dict[str, Any] = {
        "policy": said.label,
        "truth": truth,
        "verdict": verdict,
        "wrong": (verdict == "better" and truth <= logged)
        or (verdict == "worse" and truth >= logged),
        "reasons": reasons,
        "far": said.far,
        "outside": said.held_out["outside"],
        "effective_sample_size": said.sample_size,
        "residual": said.residual,
        "spread": float(said.values.mean(1).std(ddof=1)),
    }
    for name in METHODS:
        if name in methods:
            low, high = methods[name]["interval"] or (np.nan, np.nan)
            found[name] = {
                "estimate": methods[name]["estimate"],
                "interval": [low, high],
                "covered": bool(low <= truth <= high),
            }
    return found


def measure(task: Tabular, episodes: int, options: argparse.Namespace, folder: Path) -> Any:
    """Collect, train, judge, compare."""
    gamma, behaviour = options.discount, task.mixed(options.chance)
    settings = JudgeSettings(updates=options.updates, seeds=options.seeds, discount=gamma)
    file = folder / f"log-{episodes}-{options.seed}.npz"
    if not file.is_file():
        np.savez_compressed(file, **task.collect(behaviour, episodes, options.seed))
    asked = {
        label: task.follow(task.made(best, worst, gamma, options.seed))
        for label, best, worst in MADE
    }
    for label, algo, steps in TRAINED:
        run = folder / f"{episodes}-{options.seed}-{label.replace(', ', '-').replace(' ', '-')}"
        if not (run / "result.json").is_file():
            kind: Any = {"dataset": str(file), "seed": options.seed, "run": {"episodes": 0}}
            icql.train(algo, steps=steps, out=run, quiet=True, **kind)
        asked[label] = candidates_of(run)[0].act
    truth = {label: task.value(act(task.features)[0], gamma) for label, act in asked.items()}
    logged = task.value(behaviour, gamma)
    log, begin = Log.of(icql.load_dataset(str(file))), time.time()
    opinions = form_opinions(
        log, list(asked.items()), settings, Display(), cache_dir=default_cache_dir()
    )
    rows = [judged(said, truth[said.label], logged) for said in opinions]
    exact = [row["truth"] for row in rows]
    summary = {
        "episodes": episodes,
        "rows": len(log.data),
        "seed": options.seed,
        "settings": dataclasses.asdict(settings),
        "behaviour_truth": logged,
        "behaviour": float(opinions[0].returns.mean()),
        "behaviour_miss": opinions[0].miss,
        "spearman": {m: spearman([row[m]["estimate"] for row in rows], exact) for m in METHODS},
        "mean_error": {
            m: float(np.mean([abs(row[m]["estimate"] - row["truth"]) for row in rows]))
            for m in METHODS
        },
        "covered": {m: sum(row[m]["covered"] for row in rows) for m in METHODS},
        "wrong_verdicts": [row["policy"] for row in rows if row["wrong"]],
        "seconds": time.time() - begin,
        "policies": rows,
    }
    show(summary)
    return summary


def show(summary: dict[str, Any]) -> None:
    print(f"{'policy':<28} {'truth':>6} {'FQE':>6} interval           verdict")
    for row in sorted(summary["policies"], key=lambda row: -row["truth"]):
        low, high = row["fqe"]["interval"]
        middle = f"{row['fqe']['estimate']:6.3f} [{low:6.3f}, {high:6.3f}]"
        print(f"{row['policy']:<28} {row['truth']:6.3f} {middle}  {row['verdict']}")
    print(
        f"{summary['episodes']} episodes, {summary['rows']} rows: logged {summary['behaviour']:.3f}"
        f", truth {summary['behaviour_truth']:.3f}, fitted Q evaluation misses what was logged by "
        f"{summary['behaviour_miss']:+.3f}; {summary['seconds']:.0f} s"
    )
    for name in ("spearman", "mean_error", "covered"):
        print(f"{name}:", {m: round(value, 3) for m, value in summary[name].items()})
    print(f"verdicts that are wrong: {summary['wrong_verdicts'] or 'none'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--chance", type=float, default=0.3, help="share of choices by chance")
    parser.add_argument("--seed", type=int, default=0, help="of the log, the runs and the judge")
    parser.add_argument("--updates", type=int, default=JudgeSettings.updates)
    parser.add_argument("--seeds", type=int, default=JudgeSettings.seeds)
    parser.add_argument("--discount", type=float, default=JudgeSettings.discount)
    parser.add_argument("--runs", type=Path, help="folder where logs and trained policies stay")
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    options = parser.parse_args()
    task = installed()
    if task is None:
        parser.exit(2, "icu-sepsis is not installed: pip install --no-deps icu-sepsis==2.0.1\n")
    with kept(options.runs) as folder:
        found = [measure(task, episodes, options, folder) for episodes in options.episodes]
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
