"""Run by `test_memory_budget.py` in a process of its own: large data under a hard limit of memory.

RLIMIT_DATA counts what only this process can hold (private writable memory), not mapped files.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from pathlib import Path
from typing import Any

import icql
from icql.data import load_dataset
from icql.data.datasets import make_store, validate_dataset
from icql.retrieval import build_neighbours, default_cache_dir
from icql.settings.contexts import ContextSettings
from icql.training.checkpoints import Checkpoints
from icql.training.loop import Loop
from icql.training.stream import Streamed


def train(folder: Path, name: str, memory: int) -> None:
    icql.train(
        "icql",
        dataset=str(folder / f"{name}.icql"),
        steps=200,
        out=folder / f"run-{name}",
        settings={
            "batch_size": 8,
            "hidden": [8, 8],
            "policy.hidden": [8, 8],
            "context.k": 2,
            "context.engine": "exact",
            "context.space": "raw",  # as indexed by `prepare`
            "local.layers": 2,
            "local.features": 4,
        },
        run={"episodes": 0, "evaluate_every": 100},
        memory=memory,
        quiet=True,
    )


def prepare(folder: Path, name: str, memory: int) -> None:
    """Convert, validate and index."""
    data = make_store(folder / f"{name}.hdf5", folder / f"{name}.icql", memory=memory)
    assert validate_dataset(folder / f"{name}.icql")[0].ok
    settings = ContextSettings(k=2, engine="exact")
    build_neighbours(data, settings, cache_dir=default_cache_dir(), memory=memory)


def limit(memory: int) -> None:
    """From now on, only `memory` bytes more than are held now."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    held = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (held + memory, resource.RLIM_INFINITY))


def lift() -> None:
    """No limit from now on."""
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def limit_what_touches_data(memory: int) -> None:
    """The compiler (in the first call of the loop) and the threads that write checkpoints take far
    more than these data: all else goes under the limit.
    """
    advance, save, close = Loop.advance, Checkpoints.save, Checkpoints.close

    def limited(self: Loop, *arguments: Any) -> Any:
        result = advance(self, *arguments)
        if Loop.advance is limited:
            Loop.advance = advance  # type: ignore[method-assign]
            assert isinstance(self.data, Streamed)
            self.data._part = None  # the budget is to hold all the data
            limit(memory)
        return result

    def unlimited(self: Checkpoints, *arguments: Any) -> None:
        lift()
        save(self, *arguments)

    def limited_again(self: Checkpoints) -> None:
        close(self)
        limit(memory)

    Loop.advance = limited  # type: ignore[method-assign]
    Checkpoints.save = unlimited  # type: ignore[method-assign]
    Checkpoints.close = limited_again  # type: ignore[method-assign]


def main(folder: Path, memory: int) -> None:
    prepare(folder, "small", memory)  # libraries and threads take what they need
    train(folder, "small", memory)
    limit(memory)
    prepare(folder, "large", memory)
    print("prepared", flush=True)
    lift()
    limit_what_touches_data(memory)
    train(folder, "large", memory)
    print("trained", flush=True)
    try:
        load_dataset(folder / "large.hdf5")
    except MemoryError:
        print("not in memory", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
