"""Softmax attention, and the Decision Transformer: causal, over (return-to-go, state, action).

Chen et al. 2021, section 3. Each step of a trajectory gives three tokens, R̂_t, s_t, a_t, that
share a learned embedding of the timestep t; the action is read off the state's token. With `cross`
every block also attends to a retrieved sub-trajectory (RA-DT, Schmied et al. 2024, section 3.3). A
policy that acts by its recent steps carries a `History`.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from icql.nn.initialisation import LayerInit, NetworkInit, by_normal, by_orthogonal, by_uniform
from icql.nn.mlp import MLP, LayerNorm, Linear, dropout


class Trajectory(eqx.Module):
    """K consecutive steps of one episode, for each of a batch; padding has `valid` False."""

    to_go: Float[Array, "... k"]  # R̂_t: what is still to be earned, scaled
    s: Float[Array, "... k obs"]
    a: Float[Array, "... k act"]
    timestep: Int[Array, "... k"]
    valid: Bool[Array, "... k"]


class Goal(eqx.Module):
    """The return that is asked for, and how rewards become returns-to-go."""

    target: float = eqx.field(static=True)  # in the environment's rewards
    scale: float = eqx.field(static=True)  # returns-to-go are divided by this
    running_rewards: bool = eqx.field(static=True)  # the data pays what was earned so far, again


class History(eqx.Module):
    """The last K steps of each row, the newest at the end, and what the episode has paid."""

    steps: Trajectory
    earned: Float[Array, " rows"]

    @classmethod
    def empty(cls, rows: int, length: int, observation_dim: int, action_dim: int) -> History:
        """No step yet."""
        steps = Trajectory(
            to_go=jnp.zeros((rows, length)),
            s=jnp.zeros((rows, length, observation_dim)),
            a=jnp.zeros((rows, length, action_dim)),
            timestep=jnp.zeros((rows, length), jnp.int32),
            valid=jnp.zeros((rows, length), bool),
        )
        return cls(steps, jnp.zeros(rows))

    def saw(
        self,
        s: Float[Array, "rows obs"],
        rewards: Float[Array, " rows"],
        fresh: Bool[Array, " rows"],
        goal: Goal,
    ) -> History:
        """The history with the step that now begins; its action is not known yet.

        The return-to-go is `goal.target` at first and falls by what the previous step paid.
        """
        past = self.steps
        earned = jnp.where(fresh, 0, self.earned + rewards)
        paid = earned if goal.running_rewards else rewards
        to_go = jnp.where(fresh, goal.target / goal.scale, past.to_go[:, -1] - paid / goal.scale)
        steps = Trajectory(
            to_go=_append(past.to_go, to_go),
            s=_append(past.s, s),
            a=_append(past.a, jnp.zeros_like(past.a[:, 0])),
            timestep=_append(past.timestep, jnp.where(fresh, 0, past.timestep[:, -1] + 1)),
            valid=_append(past.valid & ~fresh[:, None], jnp.ones_like(fresh)),
        )
        return History(steps, earned)

    def did(self, a: Float[Array, "rows act"]) -> History:
        """The history with the action of its newest step."""
        return eqx.tree_at(lambda h: h.steps.a, self, self.steps.a.at[:, -1].set(a))


def _append(past: Array, new: Array) -> Array:
    """Forget the oldest step, add the newest."""
    return jnp.concatenate([past[:, 1:], new[:, None]], axis=1)


class BlockInit(NamedTuple):
    """How a block's layers start; `out` are those that add to the residual stream."""

    inner: LayerInit
    forward: LayerInit
    out: LayerInit


ORTHOGONAL_BLOCK = BlockInit(by_orthogonal(1.0), by_orthogonal(2**0.5), by_orthogonal(0.1))
GPT2_BLOCK = BlockInit(*[by_normal(0.02)] * 3)


class Attention(eqx.Module):
    """Softmax attention of tokens x to tokens y, several heads."""

    query: Linear
    key_value: Linear
    out: Linear
    heads: int = eqx.field(static=True)
    dropout: float = eqx.field(static=True)

    def __init__(
        self, width: int, heads: int, rate: float, init: BlockInit, *, key: PRNGKeyArray
    ) -> None:
        q_key, kv_key, out_key = jax.random.split(key, 3)
        self.query = Linear(width, width, init=init.inner, key=q_key)
        self.key_value = Linear(width, 2 * width, init=init.inner, key=kv_key)
        self.out = Linear(width, width, init=init.out, key=out_key)
        self.heads, self.dropout = heads, rate

    def __call__(
        self,
        x: Float[Array, "*b t width"],
        y: Float[Array, "*b u width"],
        allowed: Bool[Array, "*b t u"] | None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*b t width"]:
        """`allowed` is True where a token of x may look at a token of y (None: everywhere).

        Where nothing is allowed, 0 is added.
        """
        q, k, v = self.query(x), *jnp.split(self.key_value(y), 2, axis=-1)
        q, k, v = (z.reshape(*z.shape[:-1], self.heads, -1) for z in (q, k, v))
        scores = jnp.einsum("...thd,...uhd->...htu", q, k) / q.shape[-1] ** 0.5
        if allowed is None:
            weights = jax.nn.softmax(scores, axis=-1)
        else:
            seen = allowed[..., None, :, :]
            weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1)
            weights = jnp.where(seen, weights, 0)
        weights = _drop(weights, self.dropout, key, 0)
        attended = jnp.einsum("...htu,...uhd->...thd", weights, v).reshape(x.shape)
        return _drop(self.out(attended), self.dropout, key, 1)


class Block(eqx.Module):
    """Pre-norm self-attention, cross-attention where there is one, feed-forward; all residual."""

    norms: tuple[LayerNorm, ...]
    attention: Attention
    cross: Attention | None
    forward: MLP
    dropout: float = eqx.field(static=True)

    def __init__(
        self,
        width: int,
        heads: int,
        rate: float = 0.0,
        *,
        cross: bool = False,
        init: BlockInit = ORTHOGONAL_BLOCK,
        key: PRNGKeyArray,
    ) -> None:
        self_key, cross_key, forward_key = jax.random.split(key, 3)
        self.norms = tuple(LayerNorm(width) for _ in range(3 if cross else 2))
        self.attention = Attention(width, heads, rate, init, key=self_key)
        self.cross = Attention(width, heads, rate, init, key=cross_key) if cross else None
        forward_init = NetworkInit(init.forward, init.out)
        self.forward = MLP(width, (4 * width,), width, init=forward_init, key=forward_key)
        self.dropout = rate

    def __call__(
        self,
        x: Float[Array, "*b t width"],
        allowed: Bool[Array, "*b t t"] | None = None,
        retrieved: Float[Array, "*b u width"] | None = None,
        retrieved_valid: Bool[Array, "*b u"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*b t width"]:
        """Apply the block; every token may look at every valid retrieved one."""
        self_key, cross_key, forward_key = (None,) * 3 if key is None else jax.random.split(key, 3)
        normed = self.norms[0](x)
        x = x + self.attention(normed, normed, allowed, key=self_key)
        if self.cross is not None and retrieved is not None and retrieved_valid is not None:
            seen = retrieved_valid[..., None, :]
            visible = jnp.broadcast_to(seen, (*x.shape[:-1], seen.shape[-1]))
            x = x + self.cross(self.norms[2](x), retrieved, visible, key=cross_key)
        return x + _drop(self.forward(self.norms[1](x)), self.dropout, forward_key, 0)


class DecisionTransformer(eqx.Module):
    """Trajectories in, an action per step out; the action at t sees nothing after s_t.

    It starts as the official one: blocks as GPT-2's, N(0, 0.02²), timesteps' embeddings as
    PyTorch's, N(0, 1), all other layers as PyTorch's.
    """

    embed_to_go: Linear
    embed_state: Linear
    embed_action: Linear
    embed_timestep: Float[Array, "timesteps width"]
    norm: LayerNorm
    blocks: tuple[Block, ...]
    final_norm: LayerNorm
    head: Linear
    dropout: float = eqx.field(static=True)

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        *,
        width: int,
        layers: int,
        heads: int,
        timesteps: int,
        rate: float,
        cross: bool = False,
        key: PRNGKeyArray,
    ) -> None:
        to_go, state, action, time, head, *blocks = jax.random.split(key, layers + 5)
        torch, gpt2 = by_uniform(), GPT2_BLOCK
        self.embed_to_go = Linear(1, width, init=torch, key=to_go)
        self.embed_state = Linear(observation_dim, width, init=torch, key=state)
        self.embed_action = Linear(action_dim, width, init=torch, key=action)
        self.embed_timestep = jax.random.normal(time, (timesteps, width))
        self.norm, self.final_norm = LayerNorm(width), LayerNorm(width)
        self.blocks = tuple(
            Block(width, heads, rate, cross=cross, init=gpt2, key=k) for k in blocks
        )
        self.head = Linear(width, action_dim, init=torch, key=head)
        self.dropout = rate

    def __call__(
        self,
        trajectory: Trajectory,
        retrieved: Trajectory | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "b k act"]:
        """The action of every step, in [-1, 1]; dropout is active only when a `key` is given."""
        return jnp.tanh(self.head(self.hidden(trajectory, retrieved, key=key)))

    @property
    def dimensions(self) -> tuple[int, int]:
        """(observation, action)."""
        return self.embed_state.weight.shape[0], self.embed_action.weight.shape[0]

    def hidden(
        self,
        trajectory: Trajectory,
        retrieved: Trajectory | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "b k width"]:
        """The state tokens after the last block."""
        x = _drop(self._tokens(trajectory), self.dropout, key, 0)
        allowed = causal_mask(trajectory.valid)
        memory = None if retrieved is None else self._tokens(retrieved)
        memory_valid = None if retrieved is None else jnp.repeat(retrieved.valid, 3, axis=-1)
        for i, block in enumerate(self.blocks, start=1):
            block_key = None if key is None else jax.random.fold_in(key, i)
            x = block(x, allowed, memory, memory_valid, key=block_key)
        return self.final_norm(x)[:, 1::3]

    def embedding(self, trajectory: Trajectory) -> Float[Array, "b width"]:
        """Mean of the valid state tokens, of length 1: what RA-DT retrieves by (section 3.2)."""
        weight = trajectory.valid[..., None].astype(jnp.float32)
        mean = (self.hidden(trajectory) * weight).sum(1) / jnp.maximum(weight.sum(1), 1)
        return mean / jnp.maximum(jnp.linalg.norm(mean, axis=-1, keepdims=True), 1e-6)

    def _tokens(self, t: Trajectory) -> Float[Array, "b tokens width"]:
        """(R̂_1, s_1, a_1, R̂_2, …), each with the embedding of its timestep."""
        time = self.embed_timestep[jnp.minimum(t.timestep, len(self.embed_timestep) - 1)]
        kinds = [
            self.embed_to_go(t.to_go[..., None]) + time,
            self.embed_state(t.s) + time,
            self.embed_action(t.a) + time,
        ]
        tokens = jnp.stack(kinds, axis=2)
        return self.norm(tokens.reshape(tokens.shape[0], -1, tokens.shape[-1]))


def causal_mask(valid: Bool[Array, "b k"]) -> Bool[Array, "b 3*k 3*k"]:
    """True where a token may look: at itself and at earlier tokens that are not padding."""
    tokens = jnp.repeat(valid, 3, axis=-1)
    count = tokens.shape[-1]
    return jnp.tril(jnp.ones((count, count), bool)) & tokens[:, None]


def _drop(x: Array, rate: float, key: PRNGKeyArray | None, stream: int) -> Array:
    """Dropout where a key is given; `stream` tells apart uses of the same key."""
    if key is None or rate == 0:
        return x
    return dropout(x, rate, jax.random.bits(jax.random.fold_in(key, stream), (2,), jnp.uint32))
