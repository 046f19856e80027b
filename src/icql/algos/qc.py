"""QC: Q-learning with action chunks from a flow behaviour policy.

Li, Zhou & Levine 2025, "Reinforcement Learning with Action Chunking"; qc/agents/acfql.py. Policy
and critic work on chunks a_{t:t+h} of h actions, which are executed in one go:
    flow v:  min E ‖v(s_t, x_u, u) − (a_{t:t+h} − z)‖² over actions within the episode
    Q:       min E valid Σ_i (y − Q_i(s_t, a_{t:t+h}))²,
             y = Σ_{i<h} γ^i r_{t+i} + γ^h (1−done) Q̄(s_{t+h}, π(s_{t+h}))
    π:       by the setting `actor`
        best-of-n  the best of n chunks that v makes from noise, by the critic         QC
        distilled  one-step μ: min E [−Q(s, μ(s, z)) + α ‖μ(s, z) − a_v(s, z)‖²]       QC-FQL
A chunk that would reach beyond its episode's end is not `valid`: its critic loss is masked, and of
its flow loss the actions beyond the end. The paper trains on online afterwards; this is its
offline phase. A local critic of chunks is refused: retrieved contexts are single transitions, and
best-of-n would have to retrieve while it acts. Noise while acting: as FQL's.
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icql.algos.base import Batch, Metrics, Needs
from icql.algos.fql import FlowLearner, FlowState, aggregate
from icql.algos.optimise import descend, follow
from icql.losses import chunk_target, masked_mean
from icql.nn.critics import Critics
from icql.nn.flow import Flow, OneStepPolicy, noise_of_state
from icql.nn.mlp import in_precision
from icql.nn.policies import first_action
from icql.settings.algorithms import Aggregate, QCSettings


class OpenChunk(eqx.Module):
    """The chunk being executed, per row, and how much of it is done."""

    chunk: Float[Array, "rows h act"]
    done: Int[Array, " rows"]


class BestOfN(eqx.Module):
    """The best of n chunks that the flow makes from noise, by the critics."""

    flow: Flow
    q: Critics
    chunk_dim: int = eqx.field(static=True)
    samples: int = eqx.field(static=True)
    q_aggregate: Aggregate = eqx.field(static=True)

    def choose(
        self, s: Float[Array, "rows obs"], noise: Float[Array, "n rows chunk"]
    ) -> Float[Array, "rows chunk"]:
        """argmax over the n chunks that the flow makes from `noise`, by the critics."""
        several = jnp.broadcast_to(s, (*noise.shape[:-1], s.shape[-1]))
        chunks = self.flow.act(several, noise)
        values = aggregate(self.q.at(s)(chunks), self.q_aggregate)
        return jnp.take_along_axis(chunks, values.argmax(0)[None, :, None], axis=0)[0]

    def sample(
        self, s: Float[Array, "rows obs"], *, key: PRNGKeyArray
    ) -> Float[Array, "rows chunk"]:
        """The best of n for fresh noise."""
        return self.choose(s, jax.random.normal(key, (self.samples, len(s), self.chunk_dim)))

    def __call__(self, s: Float[Array, "rows obs"]) -> Float[Array, "rows chunk"]:
        """The best of n, the noise seeded by the state."""
        return self.choose(s, jnp.moveaxis(noise_of_state(s, (self.samples, self.chunk_dim)), 1, 0))


class ChunkPolicy(eqx.Module):
    """Chunks executed to their end before the next one is chosen."""

    chunks: BestOfN | OneStepPolicy  # a whole chunk from a state
    chunk: int = eqx.field(static=True)
    action_dim: int = eqx.field(static=True)

    def __call__(self, s: Float[Array, "... obs"]) -> Float[Array, "... act"]:
        """The first action of an episode that begins in s."""
        return first_action(self, s)

    def start(self, rows: int) -> OpenChunk:
        """Nothing planned yet."""
        return OpenChunk(jnp.zeros((rows, self.chunk, self.action_dim)), jnp.zeros(rows, jnp.int32))

    def step(
        self, carry: OpenChunk, s: Array, rewards: Array, fresh: Array
    ) -> tuple[Array, OpenChunk]:
        """The next action of the chunk; a new chunk where an episode begins or one is done."""
        again = fresh | (carry.done % self.chunk == 0)
        fresh_chunk = self.chunks(s).reshape(carry.chunk.shape)
        chunk = jnp.where(again[:, None, None], fresh_chunk, carry.chunk)
        done = jnp.where(again, 0, carry.done)
        action = jnp.take_along_axis(chunk, done[:, None, None], axis=1)[:, 0]
        return action, OpenChunk(chunk, done + 1)


@dataclass(frozen=True)
class QC(FlowLearner[QCSettings]):
    """(settings, spec) → init → update → policy (see :mod:`icql.algos.base`)."""

    @property
    def needs(self) -> Needs:
        """Windows of h steps."""
        return Needs("sequences", length=self.settings.chunk)

    def init(self, key: PRNGKeyArray) -> FlowState:
        """Fresh critics, their target, flow and, where distilled, one-step policy."""
        return self.start(key, self._chunk_dim, one_step=self.settings.actor == "distilled")

    def update(
        self, state: FlowState, batch: Batch, key: PRNGKeyArray
    ) -> tuple[FlowState, Metrics]:
        """One step on every network, all from the networks as they were; the target follows."""
        s, window = self.settings, batch.window
        assert window is not None
        steps, valid = window.steps, window.valid
        next_key, noise_key, u_key, z_key = jax.random.split(key, 4)
        state_now, chunk = steps.s[:, 0], steps.a.reshape(len(valid), -1)

        s_next = steps.s_next[:, -1]
        chunk_next = self._chunks(state).sample(s_next, key=next_key)
        q_next = aggregate(state.q_target(s_next, chunk_next), s.q_aggregate)
        y = chunk_target(steps.r, steps.mask, q_next, s.discount)

        def critic_loss(q: Critics) -> tuple[Array, Array]:
            values = q(state_now, chunk)
            return masked_mean((values - y) ** 2, valid[:, -1]), values.mean()

        q, q_loss, q_mean = descend(state.q, self.critic_optimiser(), critic_loss)

        def over_valid(error: Array) -> Array:
            return masked_mean(error.reshape(steps.a.shape), valid[..., None])

        keys = (noise_key, u_key)
        flow, bc_loss = self.flow_step(state.flow, state_now, chunk, keys, over_valid)
        pi, distilled = None, dict[str, Array]()
        if state.pi is not None:
            pi, distilled = self.distil(state, state_now, None, z_key)
        metrics = {
            "critic_loss": q_loss,
            "flow_loss": bc_loss,
            **distilled,
            "q": q_mean,
            "valid_chunks": valid[:, -1].mean(),
        }
        # the official target follows the critics as they were before this step
        q_target = follow(state.q_target, state.q.model, s.target_rate)
        return FlowState(q, q_target, flow, pi), metrics

    def policy(self, state: FlowState) -> ChunkPolicy:
        """Return the policy as trained so far."""
        policy = ChunkPolicy(self._chunks(state), self.settings.chunk, self.spec.action_dim)
        return in_precision(policy, "float32")

    def _chunks(self, state: FlowState) -> BestOfN | OneStepPolicy:
        if state.pi is not None:
            return state.pi.model
        s = self.settings
        return BestOfN(state.flow.model, state.q.model, self._chunk_dim, s.samples, s.q_aggregate)

    @property
    def _chunk_dim(self) -> int:
        return self.settings.chunk * self.spec.action_dim
