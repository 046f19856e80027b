"""How far the judge is from the truth, where there is a truth.

    python benchmarks/judge_truth.py                       # hopper-mini, ten policies, MuJoCo
    python benchmarks/judge_truth.py --dataset FILE --task NAME --updates 50000 --out truth.json

Policies of different quality: clones of all episodes, of the best tenth, of the worse half and of
the middle third, clones that were stopped early, and short runs of several algorithms. Each is
judged from the log alone, then played in the simulator: discounted returns from its own start
states, and the undiscounted score. Printed are both, Spearman's rank correlation of estimates and
truth, the share of pairs in the right order among those that the played episodes tell apart, and
how many intervals hold the truth. (Against exact values: tests/judging/test_opinion.py.)
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import icql
from icql.data.datasets import load_steps
from icql.data.formats.npz import write_npz
from icql.data.tasks import Task
from icql.data.transitions import Steps
from icql.evaluation.environments import make_env
from icql.evaluation.rollout import EnvPool, evaluate_policies
from icql.files import default_cache_dir
from icql.judging.log import Log
from icql.judging.opinion import form_opinions
from icql.judging.runs import candidates_of
from icql.judging.verdict import decide
from icql.progress import Display
from icql.settings.judge import JudgeSettings

# name, algorithm, which episodes, updates
POLICIES = (
    ("bc, all", "bc", "all", 3000),
    ("bc, best tenth", "bc", "best", 3000),
    ("bc, worse half", "bc", "worse", 3000),
    ("bc, middle third", "bc", "middle", 3000),
    ("bc, stopped early", "bc", "all", 60),
    ("iql", "iql", "all", 3000),
    ("iql, stopped early", "iql", "all", 300),
    ("td3bc", "td3bc", "all", 2000),
    ("icql-graph", "icql-graph", "all", 3000),
    ("rebrac", "rebrac", "all", 2000),
)


class Discounted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Pays γ^t r, so that a return is a discounted one."""

    def __init__(self, env: Any, discount: float) -> None:
        super().__init__(env)
        self.discount, self.factor = discount, 1.0

    def reset(self, **options: Any) -> Any:
        """Begin an episode."""
        self.factor = 1.0
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        """One step."""
        seen, reward, *rest = self.env.step(action)
        reward, self.factor = float(reward) * self.factor, self.factor * self.discount
        return (seen, reward, *rest)


def filtered(steps: Steps, folder: Path) -> dict[str, str]:
    """Files with some of the episodes each, by their return."""
    ends = np.flatnonzero(steps.ends)
    starts = np.append(0, ends[:-1] + 1)
    sums = np.append(0, np.cumsum(steps.rewards, dtype=np.float64))
    order = np.argsort(sums[ends + 1] - sums[starts])
    n, files = len(order), dict[str, str]()
    parts = {
        "best": order[-max(1, n // 10) :],
        "worse": order[: max(1, n // 2)],
        "middle": order[n // 3 : max(n // 3 + 1, 2 * n // 3)],
    }
    for name, episodes in parts.items():
        spans = [np.arange(starts[e], ends[e] + 1) for e in sorted(episodes)]
        rows = np.concatenate(spans)
        chosen: Any = {key: array[rows] for key, array in steps.arrays().items()}
        write_npz(folder / f"{name}.npz", dataclasses.replace(steps, **chosen))
        files[name] = str(folder / f"{name}.npz")
    return files


@contextmanager
def kept(folder: Path | None) -> Iterator[Path]:
    """The given folder, where trained policies stay, or one that is gone afterwards."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def train_all(dataset: str, task: str, folder: Path) -> dict[str, Path]:
    """Train the policies; those that are in the folder are taken as they are."""
    files = {**filtered(load_steps(dataset, task=task).steps, folder), "all": dataset}
    runs = {}
    for label, algo, episodes, steps in POLICIES:
        run = runs[label] = folder / label.replace(", ", "-").replace(" ", "-")
        if not (run / "result.json").is_file():
            kind: Any = {"dataset": files[episodes], "task": task, "run": {"episodes": 0}}
            icql.train(algo, steps=steps, out=run, quiet=True, **kind)
    return runs


def play(policies: Any, task: Task, discount: float, episodes: int) -> dict[str, float]:
    """The truth: discounted returns with their standard error, and the score."""
    with EnvPool(lambda: Discounted(make_env(task), discount)) as pool:
        (found,) = evaluate_policies(policies, pool, episodes=episodes, seeds=[0])
    with EnvPool(task) as pool:
        (whole,) = evaluate_policies(policies, pool, episodes=episodes, seeds=[0])
    error = float(found.returns.std(ddof=1) / np.sqrt(episodes))
    return {
        "return": float(found.returns.mean()),
        "error": error,
        "score": float(whole.normalized(task).mean()),
    }


def spearman(one: list[float], other: list[float]) -> float:
    ranks = np.array([np.argsort(np.argsort(values)) for values in (one, other)])
    return float(np.corrcoef(ranks)[0, 1])


def in_order(estimates: list[float], truth: list[dict[str, float]]) -> tuple[int, int]:
    """Pairs that the estimates put in the right order, of those that differ by 2 σ in truth."""
    right = told = 0
    for i, j in combinations(range(len(truth)), 2):
        apart = truth[i]["return"] - truth[j]["return"]
        if abs(apart) > 2 * float(np.hypot(truth[i]["error"], truth[j]["error"])):
            told += 1
            right += apart * (estimates[i] - estimates[j]) > 0
    return right, told


def measure(options: argparse.Namespace) -> dict[str, Any]:
    task, display = icql.get_task(options.task), Display()
    settings = JudgeSettings(
        updates=options.updates, seeds=options.seeds, discount=options.discount
    )
    with kept(options.runs) as folder:
        runs = train_all(options.dataset, options.task, folder)
        found = {label: candidates_of(run)[0] for label, run in runs.items()}
        truth = {
            label: play(one.policies, task, options.discount, options.episodes)
            for label, one in found.items()
        }
        log, begin = Log.of(icql.load_dataset(options.dataset, task=options.task)), time.time()
        opinions = form_opinions(
            log,
            [(label, one.act) for label, one in found.items()],
            settings,
            display,
            cache_dir=default_cache_dir(),
        )
    rows = []
    print(f"{'policy':<20} {'truth':>7} {'score':>6}  {'FQE':>7} interval           verdict")
    for said in opinions:
        real, around = truth[said.label], said.interval or (np.nan, np.nan)
        verdict, reasons = decide(said.evidence(), "the log")
        rows.append(
            {
                "policy": said.label,
                "truth": real,
                "estimate": said.estimate,
                "interval": around,
                "covered": bool(around[0] <= real["return"] <= around[1]),
                "verdict": verdict,
                "reasons": reasons,
                "outside": said.held_out["outside"],
                "far": said.far,
                "effective_sample_size": said.sample_size,
                "doubly_robust": said.methods["doubly_robust"]["estimate"],
                "corrected": said.methods["corrected"]["estimate"],
                "importance": said.methods["importance"]["estimate"],
                "local_critic": said.methods["local_critic"]["estimate"],
            }
        )
        middle = f"{said.estimate:7.1f} [{around[0]:6.1f}, {around[1]:6.1f}]"
        print(f"{said.label:<20} {real['return']:7.1f} {real['score']:6.1f}  {middle}  {verdict}")
    returns, scores = ([row["truth"][key] for row in rows] for key in ("return", "score"))
    logged = float(opinions[0].returns.mean())
    methods = ("estimate", "corrected", "doubly_robust", "importance", "local_critic")
    ranked = {m: spearman([row[m] for row in rows], returns) for m in methods}
    wrong = [
        row["policy"]
        for row in rows
        if (row["verdict"] == "better" and row["truth"]["return"] < logged)
        or (row["verdict"] == "worse" and row["truth"]["return"] > logged)
    ]
    right, told = in_order([row["estimate"] for row in rows], [row["truth"] for row in rows])
    summary = {
        "dataset": options.dataset,
        "settings": dataclasses.asdict(settings),
        "behaviour": logged,
        "behaviour_miss": opinions[0].miss,
        "spearman": ranked,
        "spearman_with_score": spearman([row["estimate"] for row in rows], scores),
        "pairs_in_order": [right, told],
        "mean_error": float(np.mean([abs(r["estimate"] - r["truth"]["return"]) for r in rows])),
        "covered": sum(row["covered"] for row in rows),
        "wrong_verdicts": wrong,
        "seconds": time.time() - begin,
        "policies": rows,
    }
    print(f"logged {logged:.1f}; fitted Q evaluation misses that by {opinions[0].miss:+.1f}")
    print("Spearman with the truth:", {name: round(value, 2) for name, value in ranked.items()})
    print(f"pairs in the right order: {right} of {told} that the truth tells apart")
    print(f"intervals that hold the truth: {summary['covered']} of {len(rows)}")
    print(f"verdicts that are wrong: {wrong or 'none'}")
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dataset", default="hopper-mini")
    parser.add_argument("--task", default="hopper-mini")
    parser.add_argument("--updates", type=int, default=JudgeSettings.updates)
    parser.add_argument("--seeds", type=int, default=JudgeSettings.seeds)
    parser.add_argument("--discount", type=float, default=JudgeSettings.discount)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--runs", type=Path, help="folder where trained policies stay")
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    options = parser.parse_args()
    summary = measure(options)
    if options.out is not None:
        options.out.write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()
