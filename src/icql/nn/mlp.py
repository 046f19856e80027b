"""Multi-layer perceptrons that act on the last axis, whatever stands before it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from icql.nn import backend
from icql.nn.initialisation import LayerInit, NetworkInit, orthogonal_net
from icql.settings.run import Precision

Tree = TypeVar("Tree")
ORTHOGONAL = orthogonal_net(2**0.5)
Activation = Literal["relu", "gelu", "tanh", "none"]
ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "tanh": jnp.tanh,
    "none": lambda x: x,
}


class Linear(eqx.Module):
    """x ↦ x W + b; the product in a precision of its own."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]
    precision: Precision = eqx.field(static=True)

    def __init__(self, inputs: int, outputs: int, *, init: LayerInit, key: PRNGKeyArray) -> None:
        self.weight, self.bias = init(key, inputs, outputs)
        self.precision = "float32"

    def __call__(self, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        """x W + b, in the type of x."""
        return self.product(x) + self.bias.astype(x.dtype)

    def product(self, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        """x W, in the type of x. In bfloat16 both factors are rounded; sums stay float32."""
        weight = self.weight.astype(x.dtype)
        if self.precision == "bfloat16" and x.dtype == jnp.float32:
            return _rounded(x, weight)
        if x.dtype == jnp.bfloat16 and (odd := -x.shape[-1] % 8):
            # rows of a multiple of 16 bytes: matrix units take others at half the speed
            x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, odd)])
            weight = jnp.pad(weight, [(0, odd), (0, 0)])
        return x @ weight


def in_precision(tree: Tree, precision: Precision) -> Tree:
    """The same networks, optimiser states and all, with their products in this precision."""

    def change(node: Any) -> Any:
        if isinstance(node, Linear):
            node = copy.copy(node)
            object.__setattr__(node, "precision", precision)
        return node

    return jax.tree.map(change, tree, is_leaf=lambda node: isinstance(node, Linear))


@jax.custom_vjp
def _rounded(x: Array, weight: Array) -> Array:
    """x W of rounded factors. Left to itself, its gradient would be products in float32."""
    return _rounded_forward(x, weight)[0]


def _rounded_forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    x, weight = x.astype(jnp.bfloat16), weight.astype(jnp.bfloat16)
    return _sums(x, weight, (x.ndim - 1,), (0,)), (x, weight)


def _rounded_backward(kept: tuple[Array, Array], d_y: Array) -> tuple[Array, Array]:
    """dx = dy Wᵀ and dW = xᵀ dy, of rounded factors too."""
    x, weight = kept
    d_y, rows = d_y.astype(jnp.bfloat16), tuple(range(x.ndim - 1))
    return _sums(d_y, weight, (x.ndim - 1,), (1,)), _sums(x, d_y, rows, rows)


_rounded.defvjp(_rounded_forward, _rounded_backward)


def _sums(x: Array, y: Array, x_axes: tuple[int, ...], y_axes: tuple[int, ...]) -> Array:
    """Sums of products over the given axes, in float32."""
    axes = ((x_axes, y_axes), ((), ()))
    return jax.lax.dot_general(x, y, axes, preferred_element_type=jnp.float32)


class LayerNorm(eqx.Module):
    """Layer normalisation over the last axis, with a learned scale and shift."""

    scale: Float[Array, " size"]
    shift: Float[Array, " size"]

    def __init__(self, size: int) -> None:
        self.scale = jnp.ones(size)
        self.shift = jnp.zeros(size)

    def __call__(self, x: Float[Array, "... size"]) -> Float[Array, "... size"]:
        """Return x with mean 0 and variance 1 along the last axis, then scaled and shifted."""
        return normalise(x, self.scale, self.shift)


@jax.custom_vjp
def normalise(
    x: Float[Array, "... size"], scale: Float[Array, " size"], shift: Float[Array, " size"]
) -> Float[Array, "... size"]:
    """Layer normalisation. Its own gradient keeps x alone, and takes two sums along each row."""
    return (_moments(x)[0] * scale + shift).astype(x.dtype)


def _moments(x: Float[Array, "... size"]) -> tuple[Float[Array, "... size"], Float[Array, "... 1"]]:
    """x with mean 0 and variance 1 along the last axis, and 1/σ; in float32 for bfloat16 too."""
    wide = x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x
    centred = wide - wide.mean(-1, keepdims=True)
    inverse = jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return centred * inverse, inverse


def _normalise_forward(x: Array, scale: Array, shift: Array) -> tuple[Array, tuple[Array, Array]]:
    return normalise(x, scale, shift), (x, scale)


def _normalise_backward(kept: tuple[Array, Array], d_y: Array) -> tuple[Array, Array, Array]:
    """dx = (g − mean g − x̂ mean(g x̂)) / σ with g = scale ∘ dy and x̂ the normalised x."""
    x, scale = kept
    normal, inverse = _moments(x)
    d_y = d_y.astype(normal.dtype)
    g = d_y * scale
    along = (g * normal).mean(-1, keepdims=True)
    d_x = inverse * (g - g.mean(-1, keepdims=True) - normal * along)
    rows = tuple(range(x.ndim - 1))
    return d_x.astype(x.dtype), (d_y * normal).sum(rows), d_y.sum(rows)


normalise.defvjp(_normalise_forward, _normalise_backward)


class MLP(eqx.Module):
    """Linear → activation → [LayerNorm] → [dropout], repeated; then a last linear layer."""

    layers: tuple[Linear, ...]
    norms: tuple[LayerNorm, ...]
    activation: Activation = eqx.field(static=True)
    final_activation: Activation = eqx.field(static=True)
    dropout: float = eqx.field(static=True)
    noise: tuple[float, ...] = eqx.field(static=True)  # on each input in training; none: ()

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        *,
        key: PRNGKeyArray,
        activation: Activation = "relu",
        final_activation: Activation = "none",
        init: NetworkInit = ORTHOGONAL,
        layer_norm: bool = False,
        dropout: float = 0.0,
        noise: Sequence[float] = (),
    ) -> None:
        sizes = [inputs, *hidden, outputs]
        keys = jax.random.split(key, len(sizes) - 1)
        inits = [init.hidden] * len(hidden) + [init.last]
        self.layers = tuple(
            Linear(n, m, init=one, key=k)
            for n, m, one, k in zip(sizes[:-1], sizes[1:], inits, keys, strict=True)
        )
        self.norms = tuple(LayerNorm(h) for h in hidden) if layer_norm else ()
        self.activation, self.final_activation = activation, final_activation
        self.dropout, self.noise = dropout, tuple(noise)

    def __call__(
        self, x: Float[Array, "... inputs"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "... outputs"]:
        """Apply the network; noise and dropout are active only when a `key` is given."""
        if key is not None and self.noise:
            widths = jnp.asarray(self.noise, x.dtype)
            # the noise's own key: that of dropout is the same with and without it
            shifts = jax.random.uniform(jax.random.fold_in(key, 1), x.shape, x.dtype, -1, 1)
            x = x + widths * shifts
        if key is None or self.dropout == 0:
            in_kernel = backend.network_in_kernel(self)
            return _in_one_kernel(self, x) if in_kernel else self.by_layer(x)
        return self.by_layer(x, jax.random.bits(key, (len(self.layers) - 1, 2), jnp.uint32))

    def by_layer(
        self, x: Float[Array, "... inputs"], words: UInt32[Array, "hidden 2"] | None = None
    ) -> Float[Array, "... outputs"]:
        """Apply the network layer by layer, with dropout by two random words for each."""
        given = x.dtype
        if backend.half_activations(self.layers[0].precision):
            x = x.astype(jnp.bfloat16)
        for i, layer in enumerate(self.layers[:-1]):
            own = None if words is None else words[i]
            if backend.norm_in_kernel(self):
                from icql.nn.kernels.norm import norm_dropout

                norm, product = self.norms[i], layer.product(x)
                x = norm_dropout(product, layer.bias, norm.scale, norm.shift, own, self.dropout)
                continue
            x = ACTIVATIONS[self.activation](layer(x))
            if self.norms:
                x = self.norms[i](x)
            if own is not None:
                x = dropout(x, self.dropout, own)
        return ACTIVATIONS[self.final_activation](self.layers[-1](x).astype(given))


@jax.custom_vjp
def _in_one_kernel(net: MLP, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
    """φ(x) where nobody asks for a gradient; whoever does gets it layer by layer."""
    from icql.nn.kernels import features

    hidden = [
        (layer.weight, layer.bias, norm.scale, norm.shift)
        for layer, norm in zip(net.layers[:-1], net.norms, strict=True)
    ]
    last = net.layers[-1]
    return features.forward(x, hidden, (last.weight, last.bias), net.final_activation)


_in_one_kernel.defvjp(
    lambda net, x: jax.vjp(lambda net, x: net.by_layer(x), net, x), lambda vjp, d_y: vjp(d_y)
)


def dropout(x: Array, rate: float, words: UInt32[Array, "2"]) -> Array:
    """Zero each entry with probability `rate` and scale the rest so that the mean is kept.

    An entry's random number is a hash of its position and two random words: computed where it is
    used, it costs no memory. Threefry's would cost more than the matrix products between them.
    """
    position = jax.lax.iota(jnp.uint32, x.size).reshape(x.shape)
    kept = hashed(position, words[0], words[1]) >= jnp.uint32(round(rate * 2**32))
    return jnp.where(kept, x * jnp.asarray(1 / (1 - rate), x.dtype), 0)


def hashed(position: UInt32[Array, "..."], first: Any, second: Any) -> UInt32[Array, "..."]:
    """A random word for each position: two rounds of mixing, keyed by two words."""
    return _mix(_mix(position ^ first) + second)


def _mix(x: Array) -> Array:
    """One-to-one scrambling of 32-bit words (the `lowbias32` multipliers of C. Wellons)."""
    x = (x ^ (x >> jnp.uint32(16))) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> jnp.uint32(15))) * jnp.uint32(0x846CA68B)
    return x ^ (x >> jnp.uint32(16))
