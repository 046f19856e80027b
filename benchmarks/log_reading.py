"""Rows per second from a CSV and a Parquet log of 17-d data to `Steps`, and the memory it takes.

    python benchmarks/log_reading.py [ROWS]

Six actions, and text with all digits of a float32, as a logger writes them (about 280 bytes a
row). "in order" is a log as recorded; "shuffled" has its rows in any order, so they are sorted.
CPU seconds are over all cores: on a busy machine they say more than the rate.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from icql.data.datasets import load_steps, write_dataset
from icql.data.transitions import DataInfo, Source, Steps

EPISODE = 1000
FILES = {
    "CSV, in order": "log.csv",
    "Parquet, in order": "log.parquet",
    "Parquet, shuffled": "mixed.parquet",
}


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        writer = spawn.Process(target=write, args=(Path(folder), rows))
        writer.start()
        writer.join()
        for label, name in FILES.items():
            reader = spawn.Process(target=report, args=(label, Path(folder) / name, rows))
            reader.start()
            reader.join()
    print(f"the steps themselves take {rows * 98 / 1e6:,.0f} MB")


def write(folder: Path, rows: int) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    steps = Steps(
        rng.normal(size=(rows, 17)).astype(np.float32),
        rng.uniform(-1, 1, (rows, 6)).astype(np.float32),
        rng.normal(size=rows).astype(np.float32),
        np.zeros(rows, np.bool_),
        np.arange(rows) % EPISODE == EPISODE - 1,
    )
    write_dataset(Source(steps, DataInfo("log")), str(folder / "log.parquet"))
    table = pyarrow.parquet.read_table(folder / "log.parquet")
    pyarrow.csv.write_csv(table, folder / "log.csv")
    pyarrow.parquet.write_table(table.take(rng.permutation(rows)), folder / "mixed.parquet")


def report(label: str, path: Path, rows: int) -> None:
    timings = []
    for _ in range(3):
        begin, cpu = time.perf_counter(), time.process_time()
        load_steps(path)
        timings.append((time.perf_counter() - begin, time.process_time() - cpu))
    wall, cpu = (min(column) for column in zip(*timings, strict=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{label:<18} {rows / wall:>11,.0f} rows/s  {cpu:5.2f} s CPU  peak {peak:,.0f} MB  "
        f"({path.stat().st_size / 1e6:,.0f} MB on disk)",
        flush=True,
    )


if __name__ == "__main__":
    main()
