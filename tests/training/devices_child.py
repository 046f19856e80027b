"""Run by `test_devices.py` in processes of their own: four simulated devices, or a group of two."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import icql
import pendulum
from icql.algos.base import Spec
from icql.algos.presets import resolve_preset
from icql.algos.registry import make_algorithm
from icql.data import load_dataset
from icql.data.datasets import make_store
from icql.errors import UserError
from icql.retrieval import build_neighbours
from icql.settings.change import override
from icql.training.device import fit_normaliser
from icql.training.loop import Loop, make_mesh
from icql.training.processes import wait_for_all
from icql.training.stream import Streamed, feed

LOCAL = {"context.k": 3, "local.layers": 2, "local.features": 4, "local.dropout": 0.1}
UPDATES = 20


def trained(
    algo: str,
    source: Path,
    count: int,
    *,
    batch: int,
    seeds: tuple[int, ...] = (0,),
    memory: int | None = None,
) -> tuple[Loop, list[np.ndarray]]:
    """The loop and every array of the states after some updates on so many devices."""
    data = load_dataset(source, task="pendulum-test")
    changes: dict[str, Any] = {"batch_size": batch, "policy.hidden": [8, 8]}
    if algo != "bc":
        changes["hidden"] = [8, 8]
    if algo == "icql":
        changes |= LOCAL
    settings = override(resolve_preset(algo, "quick", None).settings, changes)
    algorithm = make_algorithm(algo, settings, Spec(data.observation_dim, data.action_dim, 100))
    context = algorithm.needs.context
    neighbours = None if context is None else build_neighbours(data, context)
    normaliser = fit_normaliser(data, settings.data)
    fed = feed(algorithm, data, normaliser, neighbours, seeds=len(seeds), memory=memory)
    assert isinstance(fed, Streamed) == (memory is not None)
    loop = Loop(algorithm, fed, seeds, mesh=make_mesh(count, len(seeds)))
    states, _ = loop.advance(loop.init(), 0, UPDATES)
    leaves = jax.tree.leaves(loop.gather(states))
    return loop, [np.asarray(x) for x in leaves if isinstance(x, jax.Array)]


def check(name: str, one: list[np.ndarray], several: list[np.ndarray]) -> None:
    for a, b in zip(one, several, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5, err_msg=name)
    print(name, flush=True)


def devices(folder: Path) -> None:
    pendulum.register()
    log = pendulum.make_data(folder / "pendulum.npz")

    one, expected = trained("icql", log, 1, batch=16)
    four, found = trained("icql", log, 4, batch=16)
    check("icql", expected, found)
    flops = [loop.compile(loop.init()).cost_analysis()["flops"] for loop in (one, four)]
    assert flops[1] < 0.35 * flops[0], flops  # each device has its part of the work, not all of it

    # nine rows for two devices, two seeds on two each, and the data read from disk
    _, expected = trained("iql", log, 1, batch=9, seeds=(3, 4))
    make_store(log, folder / "pendulum.icql", task="pendulum-test")
    store = folder / "pendulum.icql"
    loop, found = trained("iql", store, 4, batch=9, seeds=(3, 4), memory=40_000)
    assert loop.mesh is not None
    assert loop.mesh.shape == {"members": 2, "batch": 2}
    check("iql, uneven, streamed", expected, found)

    _, expected = trained("bc", log, 1, batch=8, seeds=(3, 4))
    loop, found = trained("bc", log, 2, batch=8, seeds=(3, 4))
    assert not loop.splits  # every device has a seed of its own
    check("bc, seeds apart", expected, found)

    try:
        icql.train("bc", dataset=str(log), devices=8, out=folder / "refused", quiet=True)
    except UserError as error:
        assert not (folder / "refused").exists()
        print(error, flush=True)

    # what the group of two processes is compared with, on more devices than it has
    train_for_group(log, folder / "alone", devices=0)


def train_for_group(log: Path, out: Path, **more: Any) -> None:
    """Train what both the group and a single process train."""
    icql.train(
        "bc",
        dataset=str(log),
        steps=10,
        settings={"batch_size": 9, "policy.hidden": [8]},
        run={"episodes": 0, "evaluate_every": 5, "checkpoint_every": 5},
        out=out,
        quiet=True,
        **more,
    )


def group(folder: Path) -> None:
    """Train as a process of a group; then lose the last checkpoint and go on from before it."""
    first = os.environ["ICQL_PROCESS"] == "0"
    train_for_group(folder / "pendulum.npz", folder / ("group" if first else "nothing"))
    if first:
        shutil.copytree(folder / "group", folder / "resumed")
        shutil.rmtree(folder / "resumed" / "checkpoints" / "10")
    wait_for_all()
    icql.train(resume=True, out=folder / "resumed", quiet=True)
    try:  # the first process finds its folder taken; the other's would be free
        train_for_group(folder / "pendulum.npz", folder / ("group" if first else "nothing"))
    except UserError as error:
        print(error, flush=True)


if __name__ == "__main__":
    {"devices": devices, "group": group}[sys.argv[1]](Path(sys.argv[2]))
