"""Rows per second from a CSV and a Parquet log of 17-d data to `Steps`, and the memory it takes.

    python benchmarks/log_reading.py [ROWS]

Six actions and text with seven digits, as a logger writes them. "in order" is a log as recorded;
"shuffled" has its rows in any order, so that they are sorted.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet

from icql.data.tables import read_table, write_parquet
from icql.data.transitions import Steps

EPISODE = 1000


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    rng = np.random.default_rng(0)
    timeouts = np.arange(rows) % EPISODE == EPISODE - 1
    steps = Steps(
        rng.normal(size=(rows, 17)).astype(np.float32),
        rng.uniform(-1, 1, (rows, 6)).astype(np.float32),
        rng.normal(size=rows).astype(np.float32),
        np.zeros(rows, np.bool_),
        timeouts,
    )
    with tempfile.TemporaryDirectory() as folder:
        parquet, csv = Path(folder) / "log.parquet", Path(folder) / "log.csv"
        mixed = Path(folder) / "mixed.parquet"
        write_parquet(parquet, steps)
        table = pyarrow.parquet.read_table(parquet)
        pyarrow.csv.write_csv(table, csv)
        pyarrow.parquet.write_table(table.take(rng.permutation(rows)), mixed)
        del table, steps
        for label, path in (
            ("CSV, in order", csv),
            ("Parquet, in order", parquet),
            ("Parquet, shuffled", mixed),
        ):
            seconds = min(_time(path) for _ in range(3))
            size = path.stat().st_size / 1e6
            print(f"{label:<18} {rows / seconds:>12,.0f} rows/s  ({size:,.0f} MB on disk)")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:,.0f} MB; the steps themselves take {rows * 98 / 1e6:,.0f} MB")


def _time(path: Path) -> float:
    begin = time.perf_counter()
    read_table(path)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
