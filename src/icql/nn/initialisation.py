"""How fresh networks start: the one place that knows the schemes.

A network starts as its authors' code starts it, for papers' numbers are theirs with it. W ~ U(±b)
below means independent entries, uniform in [−b, b]; n is a layer's number of inputs, m of outputs.

| scheme     | hidden layers                   | last layer: policy | last layer: critic |
|------------|---------------------------------|--------------------|--------------------|
| orthogonal | √2 · orthogonal, bias 0         | gain · orthogonal  | gain · orthogonal  |
| small      | √2 · orthogonal, bias 0         | 0.01 · orthogonal  | 0.01 · orthogonal  |
| iql        | √2 · orthogonal, bias 0         | √2 · orthogonal    | √2 · orthogonal    |
| torch      | W, b ~ U(±1/√n)                 | W, b ~ U(±1/√n)    | W, b ~ U(±1/√n)    |
| rebrac     | W ~ U(±1/√n), bias 0.1          | W, b ~ U(±0.001)   | W, b ~ U(±0.003)   |
| cql        | policy: W, b ~ U(±1/√n)         | 0.01 · xavier      |                    |
|            | critic: √2 · orthogonal, bias 0 |                    | 0.01 · orthogonal  |
| xavier     | W ~ U(±√(6 / (n + m))), bias 0  | as hidden          | as hidden          |

`orthogonal` and `small` are this package's own; in the first, each kind of network has its `gain`.
The others are those of implicit_q_learning (common.py), of PyTorch's `Linear` (TD3+BC, DMG, CORL's
BC), of ReBRAC (networks.py, after EDAC), of CORL (cql.py, whose `orthogonal_init` reaches the
critics alone), of FQL and QC (networks.py). Biases of last layers are 0 where nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icql.settings.shared import Init

Network = Literal["policy", "critic"]
# (key, inputs, outputs) → the weights and biases of one layer
LayerInit = Callable[[PRNGKeyArray, int, int], tuple[Array, Array]]


class NetworkInit(NamedTuple):
    """How the layers of one network start."""

    hidden: LayerInit
    last: LayerInit


def network_init(scheme: Init, network: Network, gain: float) -> NetworkInit:
    """A scheme as the table above has it; `gain` is that of the last layer where it has none."""
    uniform = by_uniform()
    match scheme, network:
        case "orthogonal", _:
            return orthogonal_net(gain)
        case "small", _:
            return orthogonal_net(0.01)
        case "iql", _:
            return orthogonal_net(2**0.5)
        case "torch", _:
            return NetworkInit(uniform, uniform)
        case "rebrac", "policy":
            return NetworkInit(by_uniform(bias=0.1), by_uniform(1e-3))
        case "rebrac", "critic":
            return NetworkInit(by_uniform(bias=0.1), by_uniform(3e-3))
        case "cql", "policy":
            return NetworkInit(uniform, by_xavier(0.01))
        case "cql", "critic":
            return orthogonal_net(0.01)
        case "xavier", _:
            return NetworkInit(by_xavier(), by_xavier())
    raise ValueError(f"there is no scheme {scheme!r} of a {network}")


def orthogonal_net(gain: float) -> NetworkInit:
    """√2 · orthogonal in hidden layers, gain · orthogonal in the last one; biases 0."""
    return NetworkInit(by_orthogonal(2**0.5), by_orthogonal(gain))


def by_orthogonal(gain: float) -> LayerInit:
    """W = gain · orthogonal, b = 0."""
    return lambda key, n, m: (gain * orthogonal(key, n, m), jnp.zeros(m))


def by_uniform(bound: float | None = None, bias: float | None = None) -> LayerInit:
    """W ~ U(±bound), PyTorch's 1/√n where none is given; b alike, or constant."""

    def draw(key: PRNGKeyArray, n: int, m: int) -> tuple[Array, Array]:
        most = n**-0.5 if bound is None else bound
        w_key, b_key = jax.random.split(key)
        weight = jax.random.uniform(w_key, (n, m), minval=-most, maxval=most)
        if bias is not None:
            return weight, jnp.full(m, bias)
        return weight, jax.random.uniform(b_key, (m,), minval=-most, maxval=most)

    return draw


def by_xavier(gain: float = 1.0) -> LayerInit:
    """W ~ U(±gain √(6 / (n + m))), b = 0: Glorot & Bengio 2010, eq. 16."""

    def draw(key: PRNGKeyArray, n: int, m: int) -> tuple[Array, Array]:
        most = gain * (6 / (n + m)) ** 0.5
        return jax.random.uniform(key, (n, m), minval=-most, maxval=most), jnp.zeros(m)

    return draw


def by_normal(std: float) -> LayerInit:
    """W ~ N(0, std²), b = 0: the layers of GPT-2 (std 0.02), which DT is made of."""
    return lambda key, n, m: (std * jax.random.normal(key, (n, m)), jnp.zeros(m))


def orthogonal(key: PRNGKeyArray, inputs: int, outputs: int) -> Float[Array, "inputs outputs"]:
    """A random matrix with orthonormal rows or columns, whichever are fewer.

    The orthogonal factor of a Gaussian matrix, by Newton–Schulz iteration: products only. LAPACK's
    QR, compiled for several networks at once, can deadlock XLA's thread pool on two CPU cores.
    """
    gaussian = jax.random.normal(key, (max(inputs, outputs), min(inputs, outputs)))
    # a Frobenius norm of 1 puts every singular value below √3, where the iteration converges
    x = gaussian / jnp.linalg.norm(gaussian)

    def towards_one(_: Array, x: Array) -> Array:
        gram = jnp.matmul(x.T, x, precision="highest")
        return 1.5 * x - 0.5 * jnp.matmul(x, gram, precision="highest")

    x = jax.lax.fori_loop(0, 60, towards_one, x)
    return x if inputs >= outputs else x.T
