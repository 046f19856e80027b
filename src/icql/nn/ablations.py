"""The paper's ablation of the in-context module: a linear MLP and a softmax Transformer.

Both see the columns (φ_i, γφ'_i, r_i) of the prompt and answer as the linear Transformer does (see
:class:`icql.nn.in_context.InContextModule`).
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icql.nn.initialisation import by_orthogonal, orthogonal_net
from icql.nn.mlp import MLP, Linear
from icql.nn.transformer import Block


class LinearMLP(eqx.Module):
    """The ablation's linear MLP: linear layers over the flattened context and the query."""

    net: MLP

    def __init__(self, context: int, features: int, hidden: int, *, key: PRNGKeyArray) -> None:
        inputs = context * (2 * features + 1) + features
        self.net = MLP(
            inputs, (hidden, hidden), 1, activation="none", init=orthogonal_net(1.0), key=key
        )

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
    blocks: tuple[Block, ...]
    readout: Linear

    def __init__(
        self, features: int, *, layers: int, width: int, heads: int, key: PRNGKeyArray
    ) -> None:
        embed_key, read_key, *block_keys = jax.random.split(key, layers + 2)
        self.embed = Linear(2 * features + 1, width, init=by_orthogonal(1.0), key=embed_key)
        self.blocks = tuple(Block(width, heads, key=k) for k in block_keys)
        self.readout = Linear(width, 1, init=by_orthogonal(1.0), key=read_key)

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


def prompt_columns(
    phi: Array, phi_next: Array, r: Array, mask: Array, discount: float
) -> Float[Array, "... n columns"]:
    """Return the context columns (φ_i, γφ'_i, r_i) of the prompt Z₀, as rows."""
    return jnp.concatenate([phi, discount * mask[..., None] * phi_next, r[..., None]], axis=-1)
