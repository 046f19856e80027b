"""Data three times larger than the memory that is allowed: converted, validated, indexed, trained.

The limit is the system's, so that it cannot be evaded; the same process then fails to load the
data the ordinary way.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

MEMORY = 31_000_000


def write(path: Path, rows: int, observation: int = 400, action: int = 8) -> None:
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        shapes = {"observations": observation, "actions": action}
        arrays = {k: file.create_dataset(k, (rows, v), "f4") for k, v in shapes.items()}
        for start in range(0, rows, 1_000):
            for array in arrays.values():
                part = array[start : start + 1_000].shape
                array[start : start + 1_000] = rng.uniform(-1, 1, part)
        file["rewards"] = rng.normal(size=rows).astype(np.float32)
        file["terminals"] = np.zeros(rows, np.bool_)
        file["timeouts"] = np.arange(rows) % 500 == 499


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts this way on Linux only")
def test_the_memory_budget_is_kept(tmp_path: Path) -> None:
    write(tmp_path / "small.hdf5", 3_000)
    write(tmp_path / "large.hdf5", 28_500)
    child = Path(__file__).with_name("memory_child.py")
    allocator = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "131072"}
    environment = {
        **os.environ,
        **allocator,  # what was freed is given back, not kept in the allocator's pockets
        "ICQL_CACHE": str(tmp_path / "cache"),
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    done = subprocess.run(
        [sys.executable, str(child), str(tmp_path), str(MEMORY)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.stdout.split("\n")[:3] == ["prepared", "trained", "not in memory"], done.stderr
    size = sum(path.stat().st_size for path in (tmp_path / "large.icql").iterdir())
    assert size > 3 * MEMORY
