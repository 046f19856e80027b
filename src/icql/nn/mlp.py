"""Multi-layer perceptrons that act on the last axis, whatever stands before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

Activation = Literal["relu", "gelu", "tanh", "none"]
ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "tanh": jnp.tanh,
    "none": lambda x: x,
}


class Linear(eqx.Module):
    """x ↦ x W + b with orthogonal W."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, inputs: int, outputs: int, *, gain: float, key: PRNGKeyArray) -> None:
        self.weight = gain * orthogonal(key, inputs, outputs)
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        """x W + b."""
        return x @ self.weight + self.bias


def orthogonal(key: PRNGKeyArray, inputs: int, outputs: int) -> Float[Array, "inputs outputs"]:
    """A random matrix with orthonormal rows or columns, whichever are fewer.

    The orthogonal factor of a Gaussian matrix, by Newton–Schulz iteration: products only. LAPACK's
    QR, compiled for several networks at once, can deadlock XLA's thread pool on two CPU cores.
    """
    gaussian = jax.random.normal(key, (max(inputs, outputs), min(inputs, outputs)))
    # a Frobenius norm of 1 puts every singular value below √3, where the iteration converges
    x = gaussian / jnp.linalg.norm(gaussian)

    def towards_one(_: int, x: Array) -> Array:
        gram = jnp.matmul(x.T, x, precision="highest")
        return 1.5 * x - 0.5 * jnp.matmul(x, gram, precision="highest")

    x = jax.lax.fori_loop(0, 60, towards_one, x)
    return x if inputs >= outputs else x.T


class LayerNorm(eqx.Module):
    """Layer normalisation over the last axis, with a learned scale and shift."""

    scale: Float[Array, " size"]
    shift: Float[Array, " size"]

    def __init__(self, size: int) -> None:
        self.scale = jnp.ones(size)
        self.shift = jnp.zeros(size)

    def __call__(self, x: Float[Array, "... size"]) -> Float[Array, "... size"]:
        """Return x with mean 0 and variance 1 along the last axis, then scaled and shifted."""
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + 1e-5) * self.scale + self.shift


class MLP(eqx.Module):
    """Linear → activation → [LayerNorm] → [dropout], repeated; then a last linear layer."""

    layers: tuple[Linear, ...]
    norms: tuple[LayerNorm, ...]
    activation: Activation = eqx.field(static=True)
    final_activation: Activation = eqx.field(static=True)
    dropout: float = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        *,
        key: PRNGKeyArray,
        activation: Activation = "relu",
        final_activation: Activation = "none",
        final_gain: float = 2**0.5,
        layer_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        sizes = [inputs, *hidden, outputs]
        keys = jax.random.split(key, len(sizes) - 1)
        gains = [2**0.5] * len(hidden) + [final_gain]
        self.layers = tuple(
            Linear(i, o, gain=g, key=k)
            for i, o, g, k in zip(sizes[:-1], sizes[1:], gains, keys, strict=True)
        )
        self.norms = tuple(LayerNorm(h) for h in hidden) if layer_norm else ()
        self.activation, self.final_activation = activation, final_activation
        self.dropout = dropout

    def __call__(
        self, x: Float[Array, "... inputs"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "... outputs"]:
        """Apply the network; dropout is active only when a `key` is given."""
        for i, layer in enumerate(self.layers[:-1]):
            x = ACTIVATIONS[self.activation](layer(x))
            if self.norms:
                x = self.norms[i](x)
            if key is not None and self.dropout > 0:
                x = dropout(x, self.dropout, key=jax.random.fold_in(key, i))
        return ACTIVATIONS[self.final_activation](self.layers[-1](x))


def dropout(x: Array, rate: float, *, key: PRNGKeyArray) -> Array:
    """Zero each entry with probability `rate` and scale the rest so that the mean is kept.

    An entry takes 16 random bits, so the rate is a multiple of 2⁻¹⁶: with 32 each, random numbers
    would cost more than the products between them.
    """
    dropped = round(2**16 * rate)
    words = jax.random.bits(key, (-(-x.size // 2),), jnp.uint32)
    halves = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(-1)[: x.size].reshape(x.shape)
    return jnp.where(halves >= dropped, x * (2**16 / (2**16 - dropped)), 0)
