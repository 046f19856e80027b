"""In-context modules: what turns context features and a query feature into a value.

All three have the same two steps, so that they are swappable by one setting: `read` looks at the
context alone, `answer` combines what was read with query features. The linear Transformer reads
the local weights w, so many actions of one state cost one read.
"""

from __future__ import annotations

from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icql.nn.in_context import dual, reduced
from icql.nn.kernels import fused, on_gpu
from icql.nn.mlp import MLP, LayerNorm, Linear
from icql.settings.critics import Form


class InContextModule(Protocol):
    """read(context) → memory; answer(memory, φ_query) → value."""

    def read(
        self,
        phi: Float[Array, "... n d"],
        phi_next: Float[Array, "... n d"],
        r: Float[Array, "... n"],
        mask: Float[Array, "... n"],
        discount: float,
    ) -> Array:
        """What the context alone says."""
        ...

    def answer(self, memory: Array, phi_query: Float[Array, "... d"]) -> Float[Array, "..."]:
        """The value of each query."""
        ...


class LinearTransformer(eqx.Module):
    """The paper's module: L layers of linear attention with trainable C_ℓ."""

    C: Float[Array, "layers d d"]
    form: Form = eqx.field(static=True)

    def __init__(self, layers: int, features: int, c_scale: float, form: Form = "auto") -> None:
        self.C = jnp.tile(jnp.eye(features) * (c_scale / features), (layers, 1, 1))
        self.form = form

    def read(
        self, phi: Array, phi_next: Array, r: Array, mask: Array, discount: float
    ) -> Float[Array, "... d"]:
        """Return the local weights w_L of each context."""
        form = self.form
        if form == "auto":
            form = "fused" if on_gpu() else "reduced"
        match form:
            case "fused":
                return fused(phi, phi_next, r, mask, self.C, discount)
            case "dual":
                return dual(phi, phi_next, r, mask, self.C, discount)
            case _:
                return reduced(phi, phi_next, r, mask, self.C, discount)[0]

    def answer(self, memory: Float[Array, "... d"], phi_query: Array) -> Array:
        """Q̂ = φ_qᵀ w_L."""
        return (memory * phi_query).sum(-1)

    def trace(
        self, phi: Array, phi_next: Array, r: Array, mask: Array, discount: float
    ) -> Float[Array, "layers ... d"]:
        """Return the local weights after every layer (the paper's layer figure)."""
        return reduced(phi, phi_next, r, mask, self.C, discount)[1]


class LinearMLP(eqx.Module):
    """The ablation's linear MLP: linear layers over the flattened context and the query."""

    net: MLP

    def __init__(self, context: int, features: int, hidden: int, *, key: PRNGKeyArray) -> None:
        inputs = context * (2 * features + 1) + features
        self.net = MLP(inputs, (hidden, hidden), 1, activation="none", final_gain=1.0, key=key)

    def read(
        self, phi: Array, phi_next: Array, r: Array, mask: Array, discount: float
    ) -> Float[Array, "... flat"]:
        """Return the flattened columns of the prompt."""
        columns = prompt_columns(phi, phi_next, r, mask, discount)
        return columns.reshape(*columns.shape[:-2], -1)

    def answer(self, memory: Array, phi_query: Array) -> Array:
        """Apply the network to the context and query together."""
        memory = jnp.broadcast_to(memory, (*phi_query.shape[:-1], memory.shape[-1]))
        return self.net(jnp.concatenate([memory, phi_query], -1))[..., 0]


class SoftmaxTransformer(eqx.Module):
    """The ablation's standard Transformer: softmax self-attention over the same columns."""

    embed: Linear
    blocks: tuple[AttentionBlock, ...]
    readout: Linear

    def __init__(
        self, features: int, *, layers: int, width: int, heads: int, key: PRNGKeyArray
    ) -> None:
        embed_key, read_key, *block_keys = jax.random.split(key, layers + 2)
        self.embed = Linear(2 * features + 1, width, gain=1.0, key=embed_key)
        self.blocks = tuple(AttentionBlock(width, heads, key=k) for k in block_keys)
        self.readout = Linear(width, 1, gain=1.0, key=read_key)

    def read(
        self, phi: Array, phi_next: Array, r: Array, mask: Array, discount: float
    ) -> Float[Array, "... n columns"]:
        """Return the columns of the prompt; attention needs the query beside them."""
        return prompt_columns(phi, phi_next, r, mask, discount)

    def answer(self, memory: Array, phi_query: Array) -> Array:
        """Read the value off the query token after the last block."""
        query = jnp.pad(phi_query, [(0, 0)] * (phi_query.ndim - 1) + [(0, phi_query.shape[-1] + 1)])
        memory = jnp.broadcast_to(memory, (*phi_query.shape[:-1], *memory.shape[-2:]))
        tokens = self.embed(jnp.concatenate([memory, query[..., None, :]], -2))
        for block in self.blocks:
            tokens = block(tokens)
        return self.readout(tokens[..., -1, :])[..., 0]


class AttentionBlock(eqx.Module):
    """Pre-norm self-attention and feed-forward, both residual."""

    norm_attention: LayerNorm
    norm_forward: LayerNorm
    qkv: Linear
    out: Linear
    forward: MLP
    heads: int = eqx.field(static=True)

    def __init__(self, width: int, heads: int, *, key: PRNGKeyArray) -> None:
        qkv_key, out_key, forward_key = jax.random.split(key, 3)
        self.norm_attention, self.norm_forward = LayerNorm(width), LayerNorm(width)
        self.qkv = Linear(width, 3 * width, gain=1.0, key=qkv_key)
        self.out = Linear(width, width, gain=0.1, key=out_key)
        self.forward = MLP(width, (4 * width,), width, final_gain=0.1, key=forward_key)
        self.heads = heads

    def __call__(
        self, x: Float[Array, "... tokens width"], mask: Array | None = None
    ) -> Float[Array, "... tokens width"]:
        """Apply the block; `mask` (tokens, tokens) is True where attention is allowed."""
        q, k, v = jnp.split(self.qkv(self.norm_attention(x)), 3, axis=-1)
        split = (*x.shape[:-1], self.heads, x.shape[-1] // self.heads)
        q, k, v = (t.reshape(-1, *split[-3:]) for t in (q, k, v))
        attended = jax.nn.dot_product_attention(q, k, v, mask=mask)
        x = x + self.out(attended.reshape(x.shape))
        return x + self.forward(self.norm_forward(x))


def prompt_columns(
    phi: Array, phi_next: Array, r: Array, mask: Array, discount: float
) -> Float[Array, "... n 2d+1"]:
    """Return the context columns (φ_i, γφ'_i, r_i) of the prompt Z₀, as rows."""
    return jnp.concatenate([phi, discount * mask[..., None] * phi_next, r[..., None]], axis=-1)
