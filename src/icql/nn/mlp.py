"""Multi-layer perceptrons that act on the last axis, whatever stands before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from icql.nn.kernels import norm_dropout, on_gpu
from icql.nn.kernels.norm import hashed
from icql.nn.split import split_rows

Activation = Literal["relu", "gelu", "tanh", "none"]
Precision = Literal["float32", "bfloat16"]
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
        """x W + b, in the precision of x."""
        return self.product(x) + self.bias.astype(x.dtype)

    def product(self, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        """x W, in the precision of x."""
        weight = self.weight.astype(x.dtype)
        if x.dtype == jnp.bfloat16 and (odd := -x.shape[-1] % 8):
            # rows of a multiple of 16 bytes: matrix units take others at half the speed
            x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, odd)])
            weight = jnp.pad(weight, [(0, odd), (0, 0)])
        return x @ weight


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
        wide = x.astype(self.scale.dtype)  # the moments of bfloat16 rows need more digits
        centred = wide - wide.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        normal = centred * jax.lax.rsqrt(variance + 1e-5) * self.scale + self.shift
        return normal.astype(x.dtype)


class MLP(eqx.Module):
    """Linear → activation → [LayerNorm] → [dropout], repeated; then a last linear layer."""

    layers: tuple[Linear, ...]
    norms: tuple[LayerNorm, ...]
    activation: Activation = eqx.field(static=True)
    final_activation: Activation = eqx.field(static=True)
    dropout: float = eqx.field(static=True)
    precision: Precision = eqx.field(static=True)

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
        precision: Precision = "float32",
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
        self.dropout, self.precision = dropout, precision

    def __call__(
        self, x: Float[Array, "... inputs"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "... outputs"]:
        """Apply the network; dropout is active only when a `key` is given."""
        given, x = x.dtype, split_rows(x)
        if self.precision == "bfloat16":
            x = x.astype(jnp.bfloat16)
        hidden = self.layers[:-1]
        words: Sequence[Array | None] = [None] * len(hidden)
        if key is not None and self.dropout > 0:
            words = list(jax.random.bits(key, (len(hidden), 2), jnp.uint32))
        for i, (layer, own) in enumerate(zip(hidden, words, strict=True)):
            if self.norms and self.activation == "relu" and on_gpu():
                norm, product = self.norms[i], layer.product(x)
                x = norm_dropout(product, layer.bias, norm.scale, norm.shift, own, self.dropout)
                continue
            x = ACTIVATIONS[self.activation](layer(x))
            if self.norms:
                x = self.norms[i](x)
            if own is not None:
                x = dropout(x, self.dropout, own)
        return ACTIVATIONS[self.final_activation](self.layers[-1](x).astype(given))


def dropout(x: Array, rate: float, words: UInt32[Array, "2"]) -> Array:
    """Zero each entry with probability `rate` and scale the rest so that the mean is kept.

    An entry's random number is a hash of its position and two random words: computed where it is
    used, it costs no memory. Threefry's would cost more than the matrix products between them.
    """
    position = jax.lax.iota(jnp.uint32, x.size).reshape(x.shape)
    kept = hashed(position, words[0], words[1]) >= jnp.uint32(round(rate * 2**32))
    return jnp.where(kept, x * jnp.asarray(1 / (1 - rate), x.dtype), 0)
