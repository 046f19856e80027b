"""The benchmark command, its count of operations, and the prediction of memory."""

from __future__ import annotations

import json
from unittest.mock import Mock

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from icql.algos.base import Spec
from icql.algos.bc import BC
from icql.bench import speed
from icql.bench.flops import count_flops
from icql.bench.speed import flops_of_update, made_up_data, paper_costs
from icql.cli import main
from icql.errors import UserError
from icql.settings.algorithms import BCSettings
from icql.settings.shared import PolicySettings
from icql.training import loop as loops
from icql.training.device import DeviceData, fit_normaliser, to_device
from icql.training.loop import Loop, MemoryNeed, check_memory, memory_of

OBS, ACT = 5, 2


@pytest.fixture(scope="module")
def data() -> DeviceData:
    made_up = made_up_data(1000, OBS, ACT)
    return to_device(made_up, fit_normaliser(made_up, BCSettings().data), None)


# --- operations ---------------------------------------------------------------------------------


def test_flops_of_products_loops_branches_and_gradients():
    a, b = jnp.ones((3, 4)), jnp.ones((4, 5))
    one = 2 * 3 * 4 * 5
    assert count_flops(lambda a, b: jnp.tanh(a @ b), a, b) == one
    assert count_flops(lambda a, b: jax.jit(jnp.matmul)(a, b), a, b) == one

    def repeated(a, b):
        return jax.lax.fori_loop(0, 7, lambda i, x: x + (a @ b).sum(), 0.0)

    assert count_flops(repeated, a, b) == 7 * one

    def either(a, b):
        return jax.lax.cond(a.sum() > 0, lambda: (a @ b).sum(), lambda: 0.0)

    assert count_flops(either, a, b) == one
    # the gradient of both factors takes the product itself and two more of its size
    square = lambda a, b: ((a @ b) ** 2).sum()  # noqa: E731
    assert count_flops(jax.grad(square, argnums=(0, 1)), a, b) == 3 * one
    batched = jax.vmap(jnp.matmul)
    assert count_flops(batched, jnp.ones((6, 3, 4)), jnp.ones((6, 4, 5))) == 6 * one


def test_flops_of_bc_by_hand(data):
    """Forward, and backward to every weight and every hidden input."""
    algo = BC(BCSettings(policy=PolicySettings(hidden=(8, 16)), batch_size=32), Spec(OBS, ACT, 10))
    layers = [OBS * 8, 8 * 16, 16 * ACT]
    assert flops_of_update(algo, data) == 2 * 32 * (3 * sum(layers) - layers[0])


# --- memory -------------------------------------------------------------------------------------


def test_memory_grows_with_seeds_and_batch(data):
    def predict(seeds: int, batch: int) -> MemoryNeed:
        settings = BCSettings(policy=PolicySettings(hidden=(16, 16)), batch_size=batch)
        loop = Loop(BC(settings, Spec(OBS, ACT, 10)), data, range(seeds))
        return memory_of(loop, loop.init())

    one, four, large = predict(1, 64), predict(4, 64), predict(1, 1024)
    held = sum(x.nbytes for x in jax.tree.leaves(eqx.filter(data, eqx.is_array)))
    assert held <= one.data < held + 100  # and a key and two counters
    assert four.states == 4 * one.states
    assert one.states == large.states
    assert four.work > 2 * one.work
    assert large.work > 4 * one.work
    assert one.total == one.data + one.states + one.work
    assert large.work > 1024 * 16 * 4  # a hidden layer is kept for the backward pass


def test_a_run_that_does_not_fit_is_refused_before_it_runs(data, monkeypatch):
    loop = Loop(
        BC(BCSettings(policy=PolicySettings(hidden=(8,))), Spec(OBS, ACT, 10)), data, [0, 1, 2]
    )
    states = loop.init()
    needed = check_memory(loop, states)
    assert needed == memory_of(loop, states)
    monkeypatch.setattr(loops, "free_memory", lambda device: needed.work - 1)
    with pytest.raises(UserError, match=r"3 seed.* free") as refused:
        check_memory(loop, states)
    assert "--seeds" in refused.value.fix
    monkeypatch.setattr(loops, "free_memory", lambda device: None)  # not known: not refused
    check_memory(loop, states)


def test_the_loop_reuses_the_program_that_was_asked_about(data, monkeypatch):
    loop = Loop(BC(BCSettings(policy=PolicySettings(hidden=(8,))), Spec(OBS, ACT, 10)), data, [0])
    states = loop.init()
    loop.compile(states)

    def traced(*_):
        raise AssertionError("the update was traced again")

    monkeypatch.setattr(BC, "update", traced)
    loop.advance(states, 0, 2)


def test_free_memory_of_devices():
    device = Mock(spec=jax.Device, platform="gpu")
    device.memory_stats.return_value = {"bytes_limit": 100, "bytes_in_use": 30}
    assert loops.free_memory(device) == 70
    device.memory_stats.return_value = None
    assert loops.free_memory(device) is None


# --- the command --------------------------------------------------------------------------------

QUICK = ["--rows", "1000", "--seconds", "0.01", "--repeats", "1"]


def test_bench_speed_writes_what_it_prints(capsys, tmp_path):
    out = tmp_path / "deep" / "speed.json"
    argv = ["bench", "speed", "--algos", "bc", "iql", "--obs", "3", "--act", "2", "--k", "4"]
    small = ["--settings", "policy.hidden=[8]", "batch_size=16"]
    assert main([*argv, *QUICK, *small, "--json", "--out", str(out)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads(out.read_text())
    bc, iql = result["updates"]
    assert (bc["algorithm"], iql["algorithm"]) == ("bc", "iql")
    assert bc["paper"] is None
    assert iql["paper"]["train_ms"] == 10.52
    assert bc["gflops"] == pytest.approx(2 * 16 * (2 * 3 * 8 + 3 * 8 * 2) / 1e9)
    for row in result["updates"]:
        assert row["updates_per_s"] == pytest.approx(1e3 / row["ms_per_update"])
        assert min(row["memory_mb"], row["data_mb"], row["compile_s"]) > 0
    assert [row["engine"] for row in result["retrieval"]] == ["exact", "approximate"]
    assert all(row["recall"] >= 0.999 and row["queries_per_s"] > 0 for row in result["retrieval"])

    assert (
        main([*argv[:4], "--obs", "3", "--act", "2", *QUICK, "--settings", "policy.hidden=[8]"])
        == 0
    )
    table = capsys.readouterr().out
    assert "ms/update" in table
    assert "\nbc " in table


@pytest.mark.parametrize(
    "argv", [["speed", "--algos", "bc"], ["cost", "--contexts", "2", "--layers", "2"]]
)
def test_the_precision_asked_for_is_the_one_that_is_measured(capsys, monkeypatch, argv):
    measured = []

    def measure(loop, effort):
        measured.append(loop.algorithm.spec.precision)
        names = ("ms_per_update", "updates_per_s", "gflops", "memory_mb", "data_mb", "compile_s")
        return dict.fromkeys(names, 1.0)

    monkeypatch.setattr(speed, "measure_update", measure)
    assert main(["bench", *argv, *QUICK, "--precision", "bfloat16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["precision"] == measured[0] == "bfloat16"


def test_bench_cost_puts_the_paper_beside(capsys, monkeypatch):
    def small(algo, data, *, settings, **rest):
        tiny = {"hidden": [8], "policy.hidden": [8], "batch_size": 8, "local.features": 4}
        return cost_of(algo, data, settings={**settings, **tiny}, **rest)

    cost_of = speed.cost_of
    monkeypatch.setattr(speed, "cost_of", small)
    assert main(["bench", "cost", "--contexts", "10", "--layers", "20", *QUICK]) == 0
    tables = capsys.readouterr().out
    assert "(46.94)" in tables  # ms at K = 10, L = 20
    assert "(0.5)" in tables  # GFLOPs
    assert "(209.71)" in tables  # MB
    assert "tab:mem_ctxlen_nlayer" in tables
    assert tables.count("K = 10") == 3


def test_the_papers_tables_are_whole():
    paper = paper_costs()
    for name in ("gflops", "memory_mb"):
        assert {len(paper[name][str(n)]) for n in (10, 20, 30, 40)} == {4}
    assert paper["gflops"]["20"]["20"] == paper["algorithms"]["icql"]["gflops"]
    assert round(paper["memory_mb"]["20"]["20"]) == paper["algorithms"]["icql"]["memory_mb"]
    assert all("tab:" in table["source"] for table in paper.values())


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["sped"], "'speed'"),
        (["speed", "--algos", "icqll"], "'icql'"),
        (["speed", "--rows", "10"], "rows"),
        (["speed", "--seeds", "0", "--algos", "bc"], "seeds"),
        (["speed", "--repeats", "0"], "repeats"),
        (["speed", "--algos", "bc", "--settings", "batch_size"], "name=value"),
        (["speed", "--algos", "bc", "--settings", "batchsize=3"], "batch_size"),
        (["cost", "--seconds", "0"], "seconds"),
        (["cost", "--layers", "0"], "local.layers"),
    ],
)
def test_bad_options(capsys, argv, words):
    assert main(["bench", *argv]) == 2
    assert words in capsys.readouterr().err
