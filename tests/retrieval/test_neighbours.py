"""Large data: builds that are broken off, that go on, that append, and that keep a budget."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.retrieval import Neighbours, build_neighbours
from icql.retrieval import metric as metric_module
from icql.retrieval import neighbours as neighbours_module
from icql.retrieval import retriever as retriever_module
from icql.retrieval.metric import distinct
from icql.retrieval.retriever import Retriever
from icql.settings.contexts import ContextSettings
from retrieval.cases import assert_same, gaits, one_thread, transitions

__all__ = ["one_thread"]


def assert_same_tables(got: Neighbours, expected: Neighbours) -> None:
    assert_same((got.state, got.next_state), (expected.state, expected.next_state))
    for name in ("mean_distance", "next_mean_distance"):
        np.testing.assert_allclose(getattr(got.report, name), getattr(expected.report, name))


@pytest.fixture
def data() -> Transitions:
    """Rows on a grid: many ties and many equal rows, in every block and chunk."""
    return transitions(np.random.default_rng(1).integers(0, 4, size=(700, 4)))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours_module, "BLOCK", 100)


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(rows searched in, queries) of every search."""
    calls: list[tuple[int, int]] = []

    class Counted(neighbours_module.Nearest):
        def __call__(self, queries: Any, k: int, progress: Any) -> Any:
            calls.append((len(self), len(queries)))
            return super().__call__(queries, k, progress)

    monkeypatch.setattr(neighbours_module, "Nearest", Counted)
    return calls


every_way = pytest.mark.parametrize(
    "settings",
    [
        ContextSettings(k=5),
        ContextSettings(k=5, exclude="self"),
        ContextSettings(k=5, metric="cosine", exclude="self"),
        ContextSettings(k=5, strategy="high_reward", candidates=12, exclude="self"),
        ContextSettings(k=5, strategy="random", exclude="self"),
        ContextSettings(k=5, exclude="episode"),
    ],
    ids=["similar", "without self", "cosine", "high reward", "random", "without episode"],
)


# ---------------------------------------------------------------- in pieces


@every_way
def test_tables_in_pieces_equal_those_in_one(
    data: Transitions,
    settings: ContextSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = build_neighbours(data, settings)
    for chunk in (64, 250):
        cut = neighbours_module.Schedule(700, 0, chunk, 128, room=5000)
        monkeypatch.setattr("icql.retrieval.neighbours.plan_work", lambda *_, cut=cut, **__: cut)
        folder = tmp_path / str(chunk)
        assert_same_tables(build_neighbours(data, settings, cache_dir=folder), whole)
        assert_same_tables(build_neighbours(data, settings), whole)


def test_a_plan_covers_every_row_once_and_cuts_at_the_known_ones() -> None:
    retriever = Retriever(
        np.zeros((300_000, 17), np.float32), None, ContextSettings(engine="exact")
    )
    for memory in (None, 40_000_000):
        found = neighbours_module.plan_work(retriever, 70_000, memory)
        for parts in (found.chunks, found.blocks):
            rows = np.concatenate([np.arange(300_000)[part] for part in parts])
            np.testing.assert_array_equal(rows, np.arange(300_000))
            assert 70_000 in [part.start for part in parts]
    assert found.chunk < 70_000
    assert found.block % neighbours_module.LEAST == 0


def test_only_distinct_queries_are_searched(
    data: Transitions, searched: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = retriever_module.search_exact

    def counted(index: Any, propose: Any, queries: Any, *how: Any, **more: Any) -> Any:
        asked.append(len(queries))
        return real(index, propose, queries, *how, **more)

    monkeypatch.setattr(retriever_module, "search_exact", counted)
    walk = transitions(np.random.default_rng(5).normal(size=(300, 3)))
    build_neighbours(walk, ContextSettings(k=4))
    assert searched == [(300, 600)]
    assert asked == [301]  # every s' but the last is the s of the next row


def test_rows_that_share_a_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).integers(0, 2, size=(50, 3)).astype(np.float32)
    first, group = distinct(rows)
    expected = np.unique(rows, axis=0)
    assert len(first) == len(expected)
    assert (np.diff(first) > 0).all()
    np.testing.assert_array_equal(rows[first[group]], rows)
    monkeypatch.setattr(metric_module, "_hashes", lambda rows: np.zeros(len(rows), np.uint64))
    assert_same(distinct(rows), (first, group))


# ---------------------------------------------------------------- broken off


class Stop(Exception):
    pass


@every_way
@pytest.mark.parametrize("chunk", [700, 300], ids=["one chunk", "three chunks"])
def test_a_build_that_is_broken_off_goes_on(
    data: Transitions,
    settings: ContextSettings,
    chunk: int,
    tmp_path: Path,
    searched: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = build_neighbours(data, settings)
    cut = neighbours_module.Schedule(700, 0, chunk, 128)
    monkeypatch.setattr("icql.retrieval.neighbours.plan_work", lambda *_, **__: cut)
    searched.clear()
    shares: list[float] = []

    def stop_after(share: float) -> Callable[[str, float], None]:
        def progress(label: str, done: float) -> None:
            shares.append(done)
            if done > share:
                raise Stop

        return progress

    for share in (0.4, 0.5):
        with pytest.raises(Stop):
            build_neighbours(data, settings, cache_dir=tmp_path, progress=stop_after(share))
        assert all(path.name.startswith(".part-") for path in (tmp_path / "neighbours").iterdir())
    done_before, last = len(searched), len(shares)
    got = build_neighbours(data, settings, cache_dir=tmp_path, progress=stop_after(1.0))
    assert not got.report.cached
    assert_same_tables(got, whole)
    assert len(list((tmp_path / "neighbours").iterdir())) == 1
    assert shares[-1] == 1.0
    if settings.strategy != "random":
        assert shares[last] < 0.5  # of what was left
        every = len(cut.chunks) * len(cut.blocks)
        assert len(searched) - done_before < every - 1  # most blocks were not searched again
        again = settings.exclude == "episode"  # those that are short are asked again
        assert again or len(searched) <= every + 2


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1 - len(content) // 2 if path.suffix == ".npz" else 200] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("pattern", ["state.npy", "next_state.npy", "rows-0.*"])
@pytest.mark.parametrize("chunk", [700, 300], ids=["one chunk", "three chunks"])
@pytest.mark.parametrize("harm", [flip, lambda path: path.write_bytes(path.read_bytes()[:-9])])
def test_a_damaged_draft_is_discarded(
    data: Transitions,
    chunk: int,
    pattern: str,
    harm: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = ContextSettings(k=5)
    whole = build_neighbours(data, settings)
    cut = neighbours_module.Schedule(700, 0, chunk, 128)
    monkeypatch.setattr("icql.retrieval.neighbours.plan_work", lambda *_, **__: cut)

    def stop(label: str, done: float) -> None:
        if done > (0.9 if chunk == 300 else 0.5):
            raise Stop

    with pytest.raises(Stop):
        build_neighbours(data, settings, cache_dir=tmp_path, progress=stop)
    (path,) = (tmp_path / "neighbours").glob(f".part-*/{pattern}")
    harm(path)
    assert_same_tables(build_neighbours(data, settings, cache_dir=tmp_path), whole)


def test_a_block_damaged_while_others_are_built_is_not_published(
    data: Transitions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = neighbours_module.Schedule(700, 0, 700, 128)
    monkeypatch.setattr("icql.retrieval.neighbours.plan_work", lambda *_, **__: cut)

    def harm(label: str, done: float) -> None:
        if done > 0.9:
            for path in (tmp_path / "neighbours").glob(".part-*/state.npy"):
                path.write_bytes(path.read_bytes()[:300].ljust(path.stat().st_size, b"\0"))

    with pytest.raises(UserError, match="are discarded"):
        build_neighbours(data, ContextSettings(k=5), cache_dir=tmp_path, progress=harm)
    assert list((tmp_path / "neighbours").iterdir()) == []


KILLED = """
import sys, time
import numpy as np
from pathlib import Path
from icql.retrieval import ContextSettings, build_neighbours
from icql.retrieval import neighbours
from retrieval.cases import transitions
neighbours.BLOCK = 100
data = transitions(np.random.default_rng(1).integers(0, 4, size=(700, 4)))
def progress(label, done):
    print(done, flush=True)
    if done > 0.5:
        time.sleep(600)
build_neighbours(data, ContextSettings(k=5), cache_dir=Path(sys.argv[1]), progress=progress)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this platform")
def test_a_killed_build_goes_on(
    data: Transitions,
    tmp_path: Path,
    small_blocks: None,
    searched: list[tuple[int, int]],
) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        while float(child.stdout.readline()) <= 0.5:
            pass
        child.kill()
    got = build_neighbours(data, ContextSettings(k=5), cache_dir=tmp_path)
    assert 0 < len(searched) < 7
    assert_same_tables(got, build_neighbours(data, ContextSettings(k=5)))


# ---------------------------------------------------------------- appended


def first_rows(data: Transitions, rows: int) -> Transitions:
    return data.subset(slice(0, rows))


@every_way
@pytest.mark.parametrize("rows", [30, 450, 699, 700])
def test_appending_equals_a_rebuild(
    data: Transitions, settings: ContextSettings, rows: int, small_blocks: None
) -> None:
    rows = max(rows, 35) if settings.exclude == "episode" else rows  # one episode is not enough
    old = build_neighbours(first_rows(data, rows), settings)
    assert_same_tables(build_neighbours(data, settings, old=old), build_neighbours(data, settings))


def test_appending_compares_old_rows_with_new_ones_only(
    data: Transitions, searched: list[tuple[int, int]]
) -> None:
    settings = ContextSettings(k=5)
    old = build_neighbours(first_rows(data, 450), settings)
    searched.clear()
    build_neighbours(data, settings, old=old)
    assert sorted(searched) == [(250, 500), (250, 900), (450, 500)]


def test_appending_is_found_in_the_cache(
    data: Transitions, tmp_path: Path, searched: list[tuple[int, int]]
) -> None:
    settings = ContextSettings(k=5)
    for rows in (200, 450):
        build_neighbours(first_rows(data, rows), settings, cache_dir=tmp_path)
    other = replace(data, states=data.states + 1)
    build_neighbours(first_rows(other, 600), settings, cache_dir=tmp_path)
    searched.clear()
    got = build_neighbours(data, settings, cache_dir=tmp_path)
    assert sorted(searched) == [(250, 500), (250, 900), (450, 500)]
    assert_same_tables(got, build_neighbours(data, settings))


def test_tables_of_other_data_or_settings_cannot_be_extended(data: Transitions) -> None:
    settings = ContextSettings(k=5)
    old = build_neighbours(first_rows(data, 450), settings)
    with pytest.raises(UserError, match=r"^old: are not the tables of the first 450 rows"):
        build_neighbours(replace(data, states=data.states + 1), settings, old=old)
    with pytest.raises(UserError, match=r"^old: are not the tables"):
        build_neighbours(data, replace(settings, k=4), old=old)
    with pytest.raises(UserError, match=r"^old: are not the tables"):
        build_neighbours(first_rows(data, 100), settings, old=old)


def test_approximate_tables_can_be_extended() -> None:
    settings = ContextSettings(k=5, engine="approximate", recall_floor=0.99)
    data = transitions(gaits(3000))
    old = build_neighbours(first_rows(data, 2000), settings)
    found = build_neighbours(data, settings, old=old)
    truth = build_neighbours(data, replace(settings, engine="exact"))
    assert found.report.recall >= 0.99
    assert (found.state == truth.state).mean() > 0.98


# ---------------------------------------------------------------- within a budget


def test_a_budget_needs_a_folder_and_room(data: Transitions, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^memory: with a limit the tables must be files"):
        build_neighbours(data, ContextSettings(k=5), memory=10**9)
    with pytest.raises(UserError, match=r"^memory: 1,000 bytes are too few .*Give at least"):
        build_neighbours(data, ContextSettings(k=5), memory=1000, cache_dir=tmp_path)


MAPPED = """
import json, sys, threading, time
import faiss, numpy as np
from pathlib import Path
from icql.data.transitions import Transitions
from icql.retrieval import ContextSettings, build_neighbours, neighbours
folder, memory = Path(sys.argv[1]), int(sys.argv[2])
faiss.omp_set_num_threads(1)
neighbours.FIXED = 3_000_000  # scaled down like the rest: faiss takes less with few cells
def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))
def load(rows=None):
    return Transitions(**{
        path.stem: np.load(path, mmap_mode="r", allow_pickle=False)[:rows]
        for path in folder.glob("*.npy")
    })
settings = ContextSettings(k=5, engine=sys.argv[3], space=sys.argv[4])
build_neighbours(load(5000), settings, cache_dir=folder / "warm")  # imports, threads, first memory
before = most = anonymous()
done = False
def watch():
    global most
    while not done:
        most = max(most, anonymous())
        time.sleep(0.002)
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
found = build_neighbours(load(), settings, cache_dir=folder / "cache", memory=memory)
done = True
watcher.join()
json.dump([most - before, str(found.report)], sys.stdout)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("engine", "space"), [("exact", "raw"), ("approximate", "raw"), ("exact", "standardised")]
)
def test_mapped_data_larger_than_the_budget(engine: Any, space: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows, memory = (20_000, 9_000_000) if space == "raw" else (34_000, 16_000_000)
    surface = np.sin(rng.uniform(0, 3, size=(rows + 1, 2)) @ rng.normal(size=(2, 128)))
    path = surface.astype(np.float32)
    none = np.zeros((rows, 1), np.float32)
    data = Transitions(
        states=path[:-1],
        actions=none,
        rewards=none[:, 0],
        next_states=path[1:],
        next_actions=none,
        mask=none[:, 0],
        episode=np.zeros(rows, np.int32),
        step=np.arange(rows, dtype=np.int32),
    )
    assert data.states.nbytes + data.next_states.nbytes >= 2 * memory
    for field in fields(Transitions):
        if field.name != "info":
            np.save(tmp_path / field.name, getattr(data, field.name), allow_pickle=False)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run(
        [sys.executable, "-c", MAPPED, str(tmp_path), str(memory), engine, space],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    taken, _ = json.loads(child.stdout)
    assert taken <= memory
    settings = ContextSettings(k=5, engine=engine, space=space)
    got = build_neighbours(data, settings, cache_dir=tmp_path / "cache")
    assert got.report.cached
    if space != "raw":  # what such tables hold is tested where spaces are
        return
    whole = build_neighbours(data, settings)
    if engine == "exact":
        assert_same_tables(got, whole)
    else:
        assert got.report.recall >= 0.999
        assert (got.state == whole.state).mean() > 0.998
