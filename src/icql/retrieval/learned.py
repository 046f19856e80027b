"""The learned space: states in which different things happen lie apart.

A small network is trained on standardised states to predict the logged action and the change of
state. Its last hidden layer, standardised, is what distances are measured on. Each input column's
weights are held down as a whole (group lasso), so columns that tell neither action nor change fade
from the features, however large they are.

    x = (s − median) / spread,  h₁ = ReLU(LN(x W₁ + b₁)),  h₂ = ReLU(LN(h₁ W₂ + b₂)),  (h₂ − μ) / σ

Training is JAX's, on a CPU so that accelerators do not change it. Features are NumPy's: weights, x
and h₁ are rounded so that every product and sum fits float64, which makes matrix products exact. So
a row's features do not depend on the rows beside it, and equal states have equal features.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from numpy.typing import ArrayLike, NDArray

from icql.errors import UserError
from icql.retrieval.index import Floats, Progress
from icql.retrieval.metric import Fitted, Points, Rows, check_rows, pieces, spaced, spreads

VERSION = 1  # raise it when the same data and seed would give other features
WIDTH = 128  # of both hidden layers
STEPS, BATCH, RATE = 3000, 256, 1e-3
PENALTY = 3e-2  # on the length of each input column's weights: less lets it learn episodes by heart
CHUNK = 250  # steps between two signs of progress
LEARNED = 2**22  # numbers at most that it is trained on
FAR = 16.0  # spreads; what is farther away is as far
SMALL = 1e-5  # LayerNorm's
WEIGHT_BITS, INPUT_BITS, HIDDEN_BITS = 16, 20, 22  # behind the point: up to 1024 columns are exact

Weights = dict[str, jax.Array]


def learn(
    states: ArrayLike, actions: ArrayLike, next_states: ArrayLike, seed: int, progress: Progress
) -> Fitted:
    """Train the network on transitions (N, …) and return what its features are made of.

    Of long data it sees a part: at most `LEARNED` numbers, evenly spread over the rows.
    """
    given = {"states": states, "actions": actions, "next_states": next_states}
    s, a, s_next = (check_rows(array, name) for name, array in given.items())
    if len({len(s), len(a), len(s_next)}) > 1 or s.shape != s_next.shape:
        shapes = ", ".join(f"{array.shape}" for array in (s, a, s_next))
        raise UserError(f"do not fit together: {shapes}.", where="states, actions, next_states")
    rows = spaced(len(s), LEARNED // (2 * s.shape[1] + a.shape[1]))
    inputs: dict[str, NDArray[Any]] = {
        "centre": np.median(s[rows].astype(np.float64), axis=0),
        "scale": spreads(s),
    }
    x = _standardised(s[rows], inputs["centre"], inputs["scale"])
    change = s_next[rows].astype(np.float64) - s[rows]
    targets = np.concatenate([_unit(a[rows]), _unit(change)], axis=1)
    # actions as a whole count as much as the change as a whole
    share = np.repeat([1 / a.shape[1], 1 / s.shape[1]], [a.shape[1], s.shape[1]])
    trained = _train(x, targets, share, seed, progress)
    network = inputs | {name: _rounded(w, WEIGHT_BITS, 8.0) for name, w in trained.items()}
    hidden = np.concatenate([_last_hidden(network, s[rows][p]) for p in pieces(s[rows])])
    std = hidden.std(axis=0)
    return network | {"mean": hidden.mean(axis=0), "std": np.where(std > SMALL, std, 1.0)}


def features_of(fitted: Fitted, rows: Points) -> Floats:
    """The standardised features (N, WIDTH) of states (N, D)."""
    out = np.empty((len(rows), WIDTH), np.float32)
    for piece in pieces(rows):
        out[piece] = (_last_hidden(fitted, rows[piece]) - fitted["mean"]) / fitted["std"]
    return out


def _last_hidden(fitted: Fitted, rows: Points) -> Rows:
    """h₂ (N, WIDTH); matrix products are exact, sums along a row are in the order of the row."""
    h = _standardised(rows, fitted["centre"], fitted["scale"])
    h = _hidden(h @ fitted["w1"] + fitted["b1"])
    return _hidden(_rounded(h, HIDDEN_BITS) @ fitted["w2"] + fitted["b2"])


def _standardised(rows: Points, centre: Rows, scale: Rows) -> Rows:
    with np.errstate(over="ignore"):
        x: Rows = np.subtract(rows, centre, dtype=np.float64) / scale
    return _rounded(x, INPUT_BITS, FAR)


def _hidden(z: Any, xp: Any = np) -> Any:
    """ReLU(LN(z)), in NumPy or JAX; at most √WIDTH."""
    z = z - z.mean(-1, keepdims=True)
    return xp.maximum(z / xp.sqrt((z * z).mean(-1, keepdims=True) + SMALL), 0)


def _rounded(x: NDArray[Any], bits: int, most: float = np.inf) -> Rows:
    """To multiples of 2^-bits within ±most, in float64."""
    return np.rint(np.clip(x.astype(np.float64), -most, most) * 2.0**bits) * 2.0**-bits


def _unit(targets: NDArray[Any]) -> Rows:
    """Targets (N, T) to mean 0 and about one spread, outliers held back; constant ones to 0."""
    x = np.clip((targets - np.median(targets, axis=0)) / spreads(targets), -FAR, FAR)
    std = x.std(axis=0)
    return (x - x.mean(axis=0)) / np.where(std > SMALL, std, np.inf)


def _train(
    x: Rows, targets: Rows, share: Rows, seed: int, progress: Progress
) -> dict[str, NDArray[np.float32]]:
    """W₁, b₁, W₂ and b₂ after `STEPS` steps of Adam, their rate falling to 0 by a cosine."""
    host = contextlib.nullcontext()
    with contextlib.suppress(RuntimeError):  # there may be no such platform
        host = jax.default_device(jax.local_devices(backend="cpu")[0])
    with host:
        data = tuple(jnp.asarray(part, jnp.float32) for part in (x, targets, share))
        keys = jax.random.split(jax.random.key(seed), 4)
        weights = {
            "w1": jax.random.normal(keys[0], (x.shape[1], WIDTH)) / x.shape[1] ** 0.5,
            "b1": jax.random.normal(keys[1], (WIDTH,)) / 2,
            "w2": jax.random.normal(keys[2], (WIDTH, WIDTH)) * (2 / WIDTH) ** 0.5,
            "b2": jnp.zeros(WIDTH),
            "out": jnp.zeros((WIDTH, targets.shape[1])),
            "bias": jnp.zeros(targets.shape[1]),
        }
        state = weights, _optimiser().init(weights)
        for start in range(0, STEPS, CHUNK):
            steps = start + jnp.arange(min(CHUNK, STEPS - start))
            state = _steps(state, jax.vmap(partial(jax.random.fold_in, keys[3]))(steps), data)
            jax.block_until_ready(state)
            progress("learning features", min(1.0, (start + CHUNK) / STEPS))
        return {name: np.asarray(state[0][name]) for name in ("w1", "b1", "w2", "b2")}


def _optimiser() -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(RATE, STEPS))


@jax.jit
def _steps(state: Any, keys: jax.Array, data: tuple[jax.Array, ...]) -> Any:
    """One step of Adam for every key, which draws its rows."""
    x, targets, share = data

    def loss(w: Weights, rows: jax.Array) -> jax.Array:
        h = _hidden(x[rows] @ w["w1"] + w["b1"], jnp)
        h = _hidden(h @ w["w2"] + w["b2"], jnp)
        errors = jnp.square(h @ w["out"] + w["bias"] - targets[rows])
        lengths = jnp.sqrt(jnp.square(w["w1"]).sum(1) + 1e-12)
        return (errors * share).sum(-1).mean() + PENALTY * lengths.sum()

    def step(state: Any, key: jax.Array) -> tuple[Any, None]:
        weights, moments = state
        gradient = jax.grad(loss)(weights, jax.random.randint(key, (BATCH,), 0, len(x)))
        with jax.numpy_dtype_promotion("standard"):  # optax counts steps in integers
            changes, moments = _optimiser().update(gradient, moments)
        return (optax.apply_updates(weights, changes), moments), None

    return lax.scan(step, state, keys)[0]
