"""Time and memory of the graph's critic: made-up tables, values to 1 % of their range.

    python benchmarks/graph_speed.py --rows 1000000 --k 20

Contexts are rows near each other in a shuffled order, as those of gaits are: half of them close by,
half anywhere. What retrieval takes for the tables is measured by `benchmarks/retrieval_speed.py`.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

from icql.graph.value_iteration import _round, solve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--discount", type=float, default=0.99)
    parser.add_argument("--expectile", type=float, default=0.7)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    rows, k = options.rows, options.k
    near = np.arange(rows)[:, None] + rng.integers(-3000, 3000, (rows, k))
    near[:, k // 2 :] = rng.integers(0, rows, (rows, k - k // 2))
    table = jnp.asarray(rng.permutation(rows).astype(np.int32)[np.clip(near, 0, rows - 1)])
    r = jnp.asarray(rng.normal(size=rows).astype(np.float32))
    mask = jnp.asarray((rng.random(rows) > 0.001).astype(np.float32))
    tolerance = 0.01 * float(r.max() - r.min()) / (1 - options.discount)
    device = jax.devices()[0]
    print(
        f"{rows:,} rows, k {k}, γ {options.discount}, τ {options.expectile}, {device.device_kind}"
    )
    for i in range(options.repeats):
        begin = time.perf_counter()
        q = solve(
            r,
            mask,
            table,
            discount=options.discount,
            expectile=options.expectile,
            tolerance=tolerance,
        ).block_until_ready()
        said = " with compilation" if i == 0 else ""
        print(f"  {time.perf_counter() - begin:.2f} s{said}, mean Q {float(q.mean()):.3f}")
    inputs = (q, r, mask, table, None, options.discount, options.expectile)
    needs = _round.lower(*inputs).compile().memory_analysis()
    assert needs is not None  # CPU, GPU and TPU all say
    work, tables = needs.temp_size_in_bytes + needs.output_size_in_bytes, table.nbytes
    print(f"  tables {tables / 1e6:.0f} MB, beside them {work / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
