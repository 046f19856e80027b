"""The in-context critic's three equal forms, timed in one process at the paper's sizes.

    python benchmarks/forms.py [--batch 256] [--context 20] [--features 64] [--layers 20]

Value and gradient of Q̂ for a batch, forward and backward, medians over repeated runs after warm-up.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import tyro
from jax import Array

from icql.nn.in_context import dual, literal_prompt, reduced


@dataclass(frozen=True)
class Sizes:
    """Sizes of the benchmark; the defaults are the paper's."""

    batch: int = 256
    context: int = 20
    features: int = 64
    layers: int = 20
    repeats: int = 7


def main() -> None:
    sizes = tyro.cli(Sizes)
    b, n, d, layers = sizes.batch, sizes.context, sizes.features, sizes.layers
    keys = jax.random.split(jax.random.key(0), 5)
    phi, phi_next = (jnp.tanh(jax.random.normal(k, (b, n, d))) for k in keys[:2])
    query = jnp.tanh(jax.random.normal(keys[2], (b, d)))
    r, mask = jax.random.normal(keys[3], (b, n)), jnp.ones((b, n))
    c = jnp.tile(jnp.eye(d) / d, (layers, 1, 1))

    def literal(phi: Array, phi_next: Array, c: Array) -> Array:
        prompts = jax.vmap(literal_prompt, in_axes=(0, 0, 0, 0, 0, None, None))
        return -prompts(phi, phi_next, r, mask, query, c, 0.99)[:, -1, -1]

    def by(form: Callable[..., Array]) -> Callable[..., Array]:
        return lambda phi, phi_next, c: (form(phi, phi_next, r, mask, c, 0.99) * query).sum(-1)

    forms = {
        "literal prompt": literal,
        "reduced": by(lambda *a: reduced(*a)[0]),
        "dual": by(dual),
    }
    expected = literal(phi, phi_next, c)
    device = jax.devices()[0]
    print(f"{device.platform} {device.device_kind}; batch {b}, N {n}, d {d}, L {layers}")
    print(f"{'form':<16}{'ms':>9}{'speed-up':>10}{'largest error':>15}")
    base = 0.0
    for name, form in forms.items():
        gradient = jax.jit(jax.value_and_grad(squared(form), (0, 1, 2)))
        error = jnp.abs(form(phi, phi_next, c) - expected).max()
        milliseconds = 1e3 * median_time(partial(gradient, phi, phi_next, c), sizes.repeats)
        base = base or milliseconds
        print(f"{name:<16}{milliseconds:>9.2f}{base / milliseconds:>9.1f}×{error:>15.1e}")


def squared(form: Callable[..., Array]) -> Callable[..., Array]:
    """Mean of the squared values: something to take the gradient of."""
    return lambda *features: (form(*features) ** 2).mean()


def median_time(run: Callable[[], object], repeats: int) -> float:
    """Median seconds of `run` over `repeats` runs of five calls each, after a warm-up."""
    jax.block_until_ready(run())
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(5):
            jax.block_until_ready(run())
        times.append((time.perf_counter() - begin) / 5)
    return statistics.median(times)


if __name__ == "__main__":
    main()
