"""Everything that is stored: how one of each is made, and what is read of it again.

A reader returns what it read in a form that can be compared, or raises `UserError`. What names
damage and goes on with something else that is whole, as a checkpoint before the last one, raises
as well, once that is known to be whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attacks.made import made_steps, write_plant
from icql.errors import UserError

Answer = Any  # anything that can be compared
SMALL = {"batch_size": 8, "policy.hidden": [4], "hidden": [4]}
RUN = {"log_every": 1, "checkpoint_every": 2, "evaluate_every": 2, "episodes": 0}
TABLES = 600_000  # bytes for a search that is cut into parts


@dataclass(frozen=True)
class Kind:
    """One kind of thing that is stored in a folder."""

    make: Callable[[Path, int], None]  # in a folder; of one seed, or of another
    read: Callable[[Path], Answer]
    files: tuple[str, ...] = ("**/*",)  # those that are damaged
    swapped: bool = True  # whether whoever reads can know that a file is another's
    removed: bool = True  # … or that there was one


def _source(seed: int) -> Any:
    from icql.data.signals import Signals
    from icql.data.tasks import get_task
    from icql.data.transitions import DataInfo, Source

    names = tuple(f"column {i}" for i in range(11)), ("hip", "knee", "foot")
    low, high = (-1.0, -2.0, -3.0), (1.0, 2.0, 3.0)
    signals = Signals(*names, "profit", {"hip": "Nm"}, low, high)
    return Source(made_steps(200, seed), DataInfo("log", signals=signals), get_task("hopper"))


def _written(name: str) -> Callable[[Path, int], None]:
    """Make a dataset in one of our formats."""

    def make(folder: Path, seed: int) -> None:
        from icql.data.datasets import write_dataset

        write_dataset(_source(seed), str(folder / name))

    return make


def _dataset(name: str) -> Callable[[Path], Answer]:
    """Read all that a dataset says."""

    def read(folder: Path) -> Answer:
        from icql.data.datasets import examine

        findings, _ = examine(folder / name)
        data = findings.usable(name)
        info = data.info
        said = [info.signals.as_json(), info.task, list(info.episode_returns), len(data)]
        return [data.content_hash(), said, sorted(w.message for w in findings.warnings)]

    return read


def _make_minari(folder: Path, seed: int) -> None:
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    from icql.data.datasets import write_dataset

    write_dataset(_source(seed), "minari:attack/log-v0")


def _make_fetched(folder: Path, seed: int) -> None:
    """A dataset as D4RL's are, without any checksum, that was fetched."""
    import h5py

    from icql.files import file_hash, write_json

    path = folder / "datasets" / "hopper-medium-v2.hdf5"
    path.parent.mkdir()
    with h5py.File(path, "w") as file:
        for name, array in made_steps(200, seed).arrays().items():
            file.create_dataset(name, data=array, compression="gzip")
    record = {"url": "http://localhost", "bytes": path.stat().st_size, "sha256": file_hash(path)}
    write_json(path.with_name(f"{path.name}.json"), record)


def _read_fetched(folder: Path) -> Answer:
    from icql.data.datasets import load_dataset

    os.environ["ICQL_CACHE"] = str(folder)
    os.environ.pop("ICQL_D4RL_DIR", None)
    return load_dataset("hopper-medium-v2").content_hash()


def _make_run(folder: Path, seed: int) -> None:
    """A run on a log with units, judged; of the files of text the run knows what they held."""
    import icql
    from icql.training.run_folder import RunFolder
    from icql.training.trained import load_policy

    write_plant(folder / "log.csv", seed=seed)
    os.environ["ICQL_CACHE"] = str(folder.parent / "cache")
    icql.train(
        "iql",
        dataset=str(folder / "log.csv"),
        steps=4,
        out=folder / "run",
        settings={**SMALL, "critic": "local", "context.k": 2},
        run=RUN,
        seed=seed,
        quiet=True,
    )
    run = RunFolder(folder / "run")
    run.write_judged({"verdict": "better", "estimate": float(seed), "seeds": [seed]})
    load_policy(run.path).export(folder / "policy.onnx", alarm=False)
    shutil.rmtree(folder / "run" / "plots", ignore_errors=True)
    shutil.rmtree(folder / "run" / "tensorboard", ignore_errors=True)


def _read_documents(folder: Path) -> Answer:
    """What a run says of itself and of what came out."""
    from icql.training.run_folder import RunFolder

    run = RunFolder.open(folder / "run")
    return [run.manifest["versions"], run.result(), run.judged()]


def _read_data(folder: Path) -> Answer:
    """The data that a run was made on, by way of the run."""
    from icql.training.run_folder import RunFolder
    from icql.training.trained import data_of

    data = data_of(RunFolder.open(folder / "run"), dataset=folder / "log.csv")
    return [data.content_hash(), data.info.signals.as_json(), list(data.info.episode_returns)]


def _read_run(folder: Path) -> Answer:
    """All that anybody reads of a run: policy, critic, its data, scores, verdict."""
    from icql.retrieval import find_space
    from icql.training.run_folder import RunFolder
    from icql.training.trained import load_critic, load_policy
    from icql.weights import tree_hash

    run = RunFolder.open(folder / "run")
    policy = load_policy(folder / "run")
    critic: Any = load_critic(folder / "run", dataset=folder / "log.csv")
    space = critic.space or find_space(critic.data, critic.context)  # removed: found again
    signals = critic.data.info.signals.as_json()
    return [
        [tree_hash(policy.policies), policy.signals.as_json(), policy.seeds],
        [tree_hash(critic.critics), critic.data.content_hash(), space.digest, signals],
        [run.result(), run.judged(), run.manifest["versions"]],
    ]


def _read_metrics(folder: Path) -> Answer:
    """Rows of metrics: one that is damaged is left out or refused, and never another one."""
    from icql.training.run_folder import RunFolder

    rows = [json.dumps(row) for row in RunFolder(folder / "run").rows()]
    written = (folder / "rows.json").read_text().splitlines()
    if set(rows) < set(written):
        raise UserError("a line is lost.")
    return rows


def _make_metrics(folder: Path, seed: int) -> None:
    from icql.settings.grid import Member
    from icql.training.run_folder import MetricLog, RunFolder

    plan: dict[str, Any] = {"algo": "bc", "seeds": [seed], "run": {}, "data_hash": ""}
    run = RunFolder.create(folder / "run", plan)
    log = MetricLog(run, [Member(seed, {})], 0)
    for step in range(1, 20):
        log.write(step, "train", {"loss": np.array([1 / (step + seed)])}, seconds=float(step))
    log.close()
    shutil.rmtree(folder / "run" / "tensorboard")
    (folder / "rows.json").write_text("\n".join(json.dumps(row) for row in run.rows()))


def _states(seed: int) -> dict[str, Any]:
    import jax.numpy as jnp

    return {"w": jnp.arange(6.0).reshape(2, 3) + seed, "step": jnp.asarray(seed)}


def _make_checkpoints(folder: Path, seed: int) -> None:
    from icql.training.checkpoints import Checkpoints

    kept = Checkpoints(folder / "checkpoints", f"plan {seed}")
    for step in (1, 2):
        kept.save(step, _states(10 * seed + step))
    kept.close()


def _read_checkpoints(folder: Path) -> Answer:
    """The newest; the one before, where that is said, must be whole."""
    from icql.training.checkpoints import Checkpoints
    from icql.weights import tree_hash

    said: list[str] = []
    kept = Checkpoints(folder / "checkpoints", "plan 0")
    try:
        step, states = kept.newest(_states(0), said.append)
    finally:
        kept.close()
    if said and (step, tree_hash(states)) == (1, tree_hash(_states(1))):
        raise UserError(" ".join(said))
    return [step, tree_hash(states), said]


def _make_graph(folder: Path, seed: int) -> None:
    import icql

    write_plant(folder / "log.csv", seed=seed)
    os.environ["ICQL_CACHE"] = str(folder.parent / "cache")
    icql.train(
        "icql-graph",
        dataset=str(folder / "log.csv"),
        steps=1,
        out=folder / "run",
        settings={"batch_size": 8, "policy.hidden": [4]},
        run=RUN,
        seed=seed,
        quiet=True,
    )


def _read_graph(folder: Path) -> Answer:
    from icql.training.trained import load_critic

    critic: Any = load_critic(folder / "run", dataset=folder / "log.csv")
    return hashlib.sha256(critic.row_q.tobytes()).hexdigest()


def _read_policy(folder: Path) -> Answer:
    from icql.serving.policy_file import PolicyFile

    policy = PolicyFile(folder / "policy.onnx")
    return [policy.card, policy(np.ones((3, policy.columns), np.float32))]


def _settings() -> Any:
    from icql.settings.contexts import ContextSettings

    return ContextSettings(k=3, space="standardised")


def _transitions(seed: int) -> Any:
    from icql.data.transitions import Transitions

    return Transitions.from_steps(made_steps(300, seed))


def _make_tables(folder: Path, seed: int) -> None:
    from icql.retrieval import build_neighbours

    build_neighbours(_transitions(seed), _settings(), cache_dir=folder)


def _read_tables(folder: Path) -> Answer:
    """Tables that are damaged are built again: the same, or it is a fault."""
    from icql.retrieval import build_neighbours

    found = build_neighbours(_transitions(0), _settings(), cache_dir=folder)
    report = found.report
    means = [*report.mean_distance, *report.next_mean_distance]
    said = [report.engine, report.recall, report.states, report.queries, report.space]
    return [found.state.tolist(), found.next_state.tolist(), said, np.round(means, 9).tolist()]


class _Killed(Exception):
    """Stands in for a kill."""


def _make_draft(folder: Path, seed: int) -> None:
    """Tables that are half built."""
    from icql.retrieval import build_neighbours

    _cut_small()
    calls = 0

    def stop(label: str, share: float) -> None:
        nonlocal calls
        calls += share > 0.6
        if calls:
            raise _Killed

    try:
        build_neighbours(
            _transitions(seed), _settings(), cache_dir=folder, memory=TABLES, progress=stop
        )
    except _Killed:
        return
    raise RuntimeError("the draft was finished before it could be broken off")


def _cut_small() -> None:
    """Search in parts and blocks far smaller than anybody would."""
    from icql.retrieval import neighbours

    neighbours.FIXED, neighbours.LEAST = 0, 32


def _read_draft(folder: Path) -> Answer:
    from icql.retrieval import build_neighbours

    _cut_small()
    found = build_neighbours(_transitions(0), _settings(), cache_dir=folder, memory=TABLES)
    means = [*found.report.mean_distance, *found.report.next_mean_distance]
    return [found.state.tolist(), found.next_state.tolist(), np.round(means, 9).tolist()]


def _make_space(folder: Path, seed: int) -> None:
    from icql.retrieval.cache import write_fitted

    fitted = {"scale": np.arange(1.0, 5.0), "mean": np.full(4, float(seed))}
    write_fitted(folder / f"space-{seed}.npz", fitted)


def _read_space(folder: Path) -> Answer:
    from icql.retrieval.cache import read_fitted

    found = read_fitted(folder / "space-0.npz")
    return {name: array.tolist() for name, array in sorted(found.items())}


def _make_bench(folder: Path, seed: int) -> None:
    from icql.bench.records import Asked, BenchFolder, CellGroup
    from icql.seals import write_sealed

    bench = BenchFolder.make(folder / "bench")
    group = CellGroup(
        algo="bc",
        task="hopper",
        data_hash="0" * 64,
        settings={"rate": 0.5 + seed},
        run={"steps": 3},
        preset="quick",
        dataset="log.npz",
        changes={},
        seeds=(0, 1),
        asked=(Asked("main", "bc", "BC", "hopper", 3),),
    )
    bench.ask(group)
    for one in group.seeds:
        bench.write_record(group, one, {"outcome": {"score": 10.0 * seed + one}, "run": {}})
    failure = {"error": f"was {seed}", "kind": "OSError", "group": group.key}
    write_sealed(bench.failure_path(group.key), failure)


def _read_bench(folder: Path) -> Answer:
    from icql.bench.records import BenchFolder

    bench = BenchFolder.open(folder / "bench")
    groups, wrong = bench.groups()
    found = []
    for group in groups:
        records, damaged = bench.records(group)
        failure = bench.failure(group)
        if failure is not None and failure["kind"] == "Damaged":
            wrong.append(failure["error"])
        wrong += list(damaged.values())
        found.append([group.key, records, failure])
    if wrong:
        raise UserError(" ".join(wrong))
    return found


def _make_journal(folder: Path, seed: int) -> None:
    """A run of SAC that was stopped on its way."""
    from icql.data.tasks import get_task
    from icql.online import train_online

    stopped: Any = None

    def stop(label: str, done: int, of: int, note: str) -> None:
        if done > 60:
            raise _Killed

    try:
        stopped = train_online(get_task("hopper"), _online(seed), folder / "sac", progress=stop)
    except _Killed:
        return
    raise RuntimeError(f"it was not stopped: {stopped}")


def _online(seed: int) -> Any:
    from icql.online import OnlineSettings
    from icql.settings.algorithms import SACSettings

    tiny = SACSettings(hidden=(4,), batch_size=4)
    return OnlineSettings(
        *(80, seed, 2),
        warmup=20,
        evaluate_every=20,
        episodes=1,
        checkpoint_every=20,
        sac=tiny,
    )


def _read_journal(folder: Path) -> Answer:
    from icql.algos.base import Spec
    from icql.algos.sac import SAC
    from icql.data.tasks import get_task
    from icql.online.envs import EnvGroup
    from icql.online.learning import open_run
    from icql.weights import tree_hash

    settings, task = _online(0), get_task("hopper")
    group = EnvGroup(task, settings.envs, settings.seed)
    sac = SAC(settings.sac, Spec(group.observation_dim, group.action_dim, settings.steps))
    try:
        run, _ = open_run(task, settings, folder / "sac", group, sac)
    finally:
        group.close()
    rows = hashlib.sha256(run.journal.packed(0, run.journal.length).tobytes()).hexdigest()
    return [rows, tree_hash(run.state), [(e.step, e.score) for e in run.evaluations]]


# files of text carry no checksum: what a run was trained on is known by its hash
_TEXT = ("log.csv", "log.csv.toml")
KINDS: dict[str, Kind] = {
    "HDF5": Kind(_written("log.hdf5"), _dataset("log.hdf5"), swapped=False),
    "NPZ": Kind(_written("log.npz"), _dataset("log.npz"), swapped=False),
    "Parquet": Kind(_written("log.parquet"), _dataset("log.parquet"), swapped=False),
    "store": Kind(_written("log.icql"), _dataset("log.icql")),
    "Minari": Kind(_make_minari, _dataset("attack/log-v0")),
    "fetched D4RL file": Kind(_make_fetched, _read_fetched),
    "CSV and mapping of a run": Kind(_make_run, _read_data, _TEXT),
    "run.json": Kind(_make_run, _read_run, ("run/run.json",)),
    "result.json": Kind(_make_run, _read_documents, ("run/result.json",)),
    # without it, nobody was asked
    "judge.json": Kind(_make_run, _read_documents, ("run/judge.json",), removed=False),
    "metrics": Kind(_make_metrics, _read_metrics, ("run/metrics.jsonl",)),
    "weights": Kind(_make_run, _read_run, ("run/*.safetensors",)),
    "space of contexts": Kind(_make_run, _read_run, ("run/space.npz",)),
    "solved graph": Kind(_make_graph, _read_graph, ("run/graph.safetensors",)),
    "checkpoints": Kind(_make_checkpoints, _read_checkpoints, ("checkpoints/2/**/*",)),
    "exported policy": Kind(_make_run, _read_policy, ("policy.onnx",), swapped=False),
    "neighbour tables": Kind(_make_tables, _read_tables),
    "unfinished tables": Kind(_make_draft, _read_draft),
    "learned space": Kind(_make_space, _read_space),
    "bench folder": Kind(_make_bench, _read_bench, removed=False),  # what is not there is run
    "SAC run": Kind(_make_journal, _read_journal),
}
