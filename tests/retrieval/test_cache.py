"""Neighbour tables of a dataset and their cache."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.retrieval import build_neighbours, default_cache_dir, retrieve
from icql.retrieval import neighbours as neighbours_module
from icql.settings.contexts import ContextSettings
from retrieval.cases import assert_same, one_thread, transitions

__all__ = ["one_thread"]


@pytest.fixture
def data() -> Transitions:
    return transitions(np.random.default_rng(1).normal(size=(80, 3)))


@pytest.mark.parametrize("exclude", ["none", "self"])
@pytest.mark.parametrize("strategy", ["similar", "high_reward"])
@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_tables_hold_the_contexts_of_s_and_next_s(
    data: Transitions, metric: Any, strategy: Any, exclude: Any
) -> None:
    chosen = ContextSettings(k=4, metric=metric, strategy=strategy, candidates=9, exclude=exclude)
    tables = build_neighbours(data, chosen)
    common = {"metric": metric, "strategy": strategy, "rewards": data.rewards, "candidates": 9}
    left_out = None if exclude == "none" else np.arange(80)
    ids, away = retrieve(data.states, data.states, 4, exclude=left_out, **common)
    np.testing.assert_array_equal(tables.state, ids)
    next_ids, _ = retrieve(data.states, data.next_states, 4, **common)
    np.testing.assert_array_equal(tables.next_state, next_ids)
    assert tables.state.dtype == tables.next_state.dtype == np.int32
    np.testing.assert_allclose(tables.report.mean_distance, away.mean(axis=0))
    own = (tables.state == np.arange(80)[:, None]).any(axis=1)
    if strategy == "similar":
        assert own.all() == (exclude == "none")
    assert exclude == "none" or not own.any()


def test_random_tables_can_leave_out_their_own_row(data: Transitions) -> None:
    chosen = ContextSettings(k=79, strategy="random", exclude="self")
    tables = build_neighbours(data, chosen)
    assert not (tables.state == np.arange(80)[:, None]).any()
    assert (tables.next_state == np.arange(80)[:, None]).any()


def test_progress_is_told_in_blocks(data: Transitions) -> None:
    said: list[tuple[str, float]] = []
    build_neighbours(data, ContextSettings(k=3), progress=lambda *given: said.append(given))
    assert said[-1][1] == 1.0
    assert all(isinstance(label, str) and 0 <= done <= 1 for label, done in said)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often tables are really computed."""
    calls: list[int] = []
    real = neighbours_module._fill

    def counted(*args: Any) -> Any:
        calls.append(1)
        return real(*args)

    monkeypatch.setattr(neighbours_module, "_fill", counted)
    return calls


def test_cache_is_hit_only_for_the_same_content(
    data: Transitions, tmp_path: Path, searches: list[int]
) -> None:
    chosen = ContextSettings(k=4)
    first = build_neighbours(data, chosen, cache_dir=tmp_path)
    second = build_neighbours(replace(data), chosen, cache_dir=tmp_path)
    assert len(searches) == 1
    assert not first.report.cached
    assert second.report == replace(first.report, cached=True)
    assert_same((first.state, first.next_state), (second.state, second.next_state))

    def changed(name: str) -> Transitions:
        array = getattr(data, name).copy()
        array[5] += 1
        return replace(data, **{name: array})

    others = [changed(name) for name in ("states", "next_states", "rewards")]
    for i, other in enumerate(others):
        cached = build_neighbours(other, chosen, cache_dir=tmp_path)
        assert len(searches) == 2 + 2 * i
        fresh = build_neighbours(other, chosen)
        assert_same((cached.state, cached.next_state), (fresh.state, fresh.next_state))
    before = len(searches)
    for i, setting in enumerate(
        (
            {"k": 5},
            {"metric": "cosine"},
            {"strategy": "random"},
            {"exclude": "self"},
            {"exclude": "episode", "k": 3},
            {"engine": "approximate"},
            {"seed": 1},
        )
    ):
        build_neighbours(data, replace(chosen, **setting), cache_dir=tmp_path)
        assert len(searches) == before + i + 1


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def other_key(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "key": "0"}))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("state.npy", cut),
        ("state.npy", flip),
        ("next_state.npy", flip),
        ("next_state.npy", Path.unlink),
        ("meta.json", cut),
        ("meta.json", Path.unlink),
        ("meta.json", lambda path: path.write_text("[]")),
        ("meta.json", other_key),
    ],
)
def test_a_damaged_entry_is_rebuilt(
    data: Transitions,
    tmp_path: Path,
    searches: list[int],
    name: str,
    damage: Callable[[Path], None],
) -> None:
    chosen = ContextSettings(k=4)
    first = build_neighbours(data, chosen, cache_dir=tmp_path)
    good = np.array(first.state), np.array(first.next_state)  # they are the files to be damaged
    [entry] = (tmp_path / "neighbours").iterdir()
    damage(entry / name)
    again = build_neighbours(data, chosen, cache_dir=tmp_path)
    assert len(searches) == 2
    assert not again.report.cached
    assert_same((again.state, again.next_state), good)
    assert build_neighbours(data, chosen, cache_dir=tmp_path).report.cached
    assert [path.name for path in (tmp_path / "neighbours").iterdir()] == [entry.name]


def test_a_second_writer_finds_the_entry_and_leaves_no_rubbish(
    data: Transitions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where files cannot be locked; elsewhere the second waits."""
    chosen = ContextSettings(k=4)
    real = neighbours_module._fill
    monkeypatch.setattr(neighbours_module.cache, "building", lambda *_: contextlib.nullcontext())

    def race(*args: Any) -> Any:
        monkeypatch.setattr(neighbours_module, "_fill", real)
        build_neighbours(data, chosen, cache_dir=tmp_path)  # another process is faster
        return real(*args)

    monkeypatch.setattr(neighbours_module, "_fill", race)
    found = build_neighbours(data, chosen, cache_dir=tmp_path)
    assert found.report.cached
    assert len(list((tmp_path / "neighbours").iterdir())) == 1
    fresh = build_neighbours(data, chosen)
    assert_same((found.state, found.next_state), (fresh.state, fresh.next_state))


BUILDS = """
import json, sys, time
from pathlib import Path
import numpy as np
from icql.retrieval import build_neighbours, neighbours
from icql.settings.contexts import ContextSettings
from retrieval.cases import transitions
real, waits = neighbours._fill, []
def slow(*args):
    print("building", flush=True)
    time.sleep(float(sys.argv[2]))
    real(*args)
def told(label, share):
    if label.startswith("waiting") and label not in waits:
        waits.append(label)
        print(label, flush=True)
neighbours._fill = slow
data = transitions(np.random.default_rng(1).normal(size=(80, 3)))
print("ready", flush=True)
found = build_neighbours(
    data, ContextSettings(k=4), cache_dir=Path(sys.argv[1]), progress=told
)
print(json.dumps([found.report.cached, found.state.tolist()]), flush=True)
"""


def builder(folder: Path, seconds: float) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", BUILDS, str(folder), str(seconds)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("killed", [False, True])
def test_the_second_process_waits_for_the_first_or_takes_over_from_a_dead_one(
    data: Transitions, tmp_path: Path, killed: bool
) -> None:
    first = builder(tmp_path, 600.0 if killed else 2.0)
    second = None
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "ready\n"
        assert first.stdout.readline() == "building\n"
        second = builder(tmp_path, 0.0)
        assert second.stdout is not None
        assert second.stdout.readline() == "ready\n"
        said = [second.stdout.readline()]
        if killed:
            assert f"waiting for process {first.pid} on " in said[0]
            first.kill()
        said += second.stdout.readlines()
        cached, table = json.loads(said[-1])
        assert second.wait() == 0
        assert cached is not killed
        assert said.count("building\n") == killed
    finally:
        for child in filter(None, (first, second)):
            child.kill()
            child.communicate()
    np.testing.assert_array_equal(table, build_neighbours(data, ContextSettings(k=4)).state)
    assert len(list((tmp_path / "neighbours").iterdir())) == 1


def test_exact_tables_are_the_same_entry_whoever_finds_them(
    data: Transitions, tmp_path: Path, searches: list[int]
) -> None:
    for engine in ("exact", "accelerator", "auto"):
        build_neighbours(data, ContextSettings(k=4, engine=engine), cache_dir=tmp_path)
    assert len(searches) == 1


def test_cached_tables_are_mapped_and_read_only(data: Transitions, tmp_path: Path) -> None:
    for _ in range(2):
        found = build_neighbours(data, ContextSettings(k=4), cache_dir=tmp_path)
        for table in (found.state, found.next_state):
            assert isinstance(table, np.memmap)
            assert table.dtype == np.int32
            assert not table.flags.writeable


def test_a_cache_that_cannot_be_written_is_a_clear_error(data: Transitions, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(UserError, match=r"cannot be used: Not a directory.*ICQL_CACHE"):
        build_neighbours(data, ContextSettings(k=4), cache_dir=blocked)


def test_default_cache_dir_can_be_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ICQL_CACHE", str(tmp_path / "here"))
    assert default_cache_dir() == tmp_path / "here"
    monkeypatch.delenv("ICQL_CACHE")
    assert default_cache_dir().name == "icql"
