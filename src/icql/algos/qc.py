"""QC: Q-learning with action chunks and best-of-n sampling from a flow behaviour policy.

Li, Zhou & Levine 2025; qc/agents/acfql.py with `actor_type = best-of-n`. Policy and critic work on
chunks a_{t:t+h} of h actions, which are executed in one go:
    flow v:  min E ‖v(s_t, x_u, u) − (a_{t:t+h} − z)‖² over actions within the episode
    π:       the best of n chunks that v makes from noise, by the critic
    Q:       min E valid Σ_i (y − Q_i(s_t, a_{t:t+h}))²,
             y = Σ_{i<h} γ^i r_{t+i} + γ^h (1−done) Q̄(s_{t+h}, π(s_{t+h}))
A chunk that would reach beyond its episode's end is not `valid`: its critic loss is masked, and of
its flow loss the actions beyond the end. The paper trains on online afterwards; this is its
offline phase. The distillation variant QC-FQL is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from icql.algos.base import Batch, DataSettings, Metrics, Needs, Spec
from icql.algos.fql import Aggregate, aggregate
from icql.algos.optimise import Trained, adam, descend, follow, start
from icql.errors import UserError
from icql.losses import chunk_target, flow_matching, flow_point, masked_mean
from icql.nn.critics import Critics, LocalSettings, make_critics
from icql.nn.flow import Flow, noise_of_state
from icql.nn.policies import first_action


@dataclass(frozen=True)
class QCSettings:
    """QC's settings; the defaults are the official ones."""

    chunk: int = 5
    """h, the actions of a chunk."""
    samples: int = 32
    """n: the policy takes the best of this many chunks."""
    q_aggregate: Aggregate = "mean"
    """How critics are taken together: mean or min."""
    flow_steps: int = 10
    """Euler steps from noise to chunk."""
    critics: int = 2
    """Number of Q critics."""
    discount: float = 0.99
    """γ per step; a chunk bootstraps with γ^h."""
    target_rate: float = 0.005
    """Step of the target network's moving average."""
    batch_size: int = 256
    """Chunks per update."""
    learning_rate: float = 3e-4
    """Adam's learning rate for every network."""
    hidden: tuple[int, ...] = (512, 512, 512, 512)
    """Hidden layers of every network (GELU; layer norm in the critics)."""
    data: DataSettings = field(default_factory=DataSettings)

    def __post_init__(self) -> None:
        if not 0 <= self.discount < 1:
            raise UserError("must be in [0, 1).", where="discount")
        for name in ("chunk", "samples", "critics", "batch_size", "flow_steps"):
            if getattr(self, name) < 1:
                raise UserError("must be at least 1.", where=name)
        for name in ("learning_rate", "target_rate"):
            if not getattr(self, name) > 0:
                raise UserError("must be positive.", where=name)


class Plan(eqx.Module):
    """The chunk being executed, per row, and how much of it is done."""

    chunk: Float[Array, "rows h act"]
    done: Int[Array, " rows"]


class ChunkPolicy(eqx.Module):
    """Best-of-n chunks, executed to their end before the next one is chosen."""

    flow: Flow
    q: Critics
    chunk: int = eqx.field(static=True)
    action_dim: int = eqx.field(static=True)
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

    def __call__(self, s: Float[Array, "... obs"]) -> Float[Array, "... act"]:
        """The first action of an episode that begins in s."""
        return first_action(self, s)

    def start(self, rows: int) -> Plan:
        """Nothing planned yet."""
        return Plan(jnp.zeros((rows, self.chunk, self.action_dim)), jnp.zeros(rows, jnp.int32))

    def step(
        self,
        carry: Plan,
        s: Float[Array, "rows obs"],
        rewards: Float[Array, " rows"],
        fresh: Bool[Array, " rows"],
    ) -> tuple[Float[Array, "rows act"], Plan]:
        """The next action of the chunk; a new chunk where an episode begins or one is done."""
        again = fresh | (carry.done % self.chunk == 0)
        size = self.chunk * self.action_dim
        noise = jnp.moveaxis(noise_of_state(s, (self.samples, size)), 1, 0)
        fresh_chunk = self.choose(s, noise).reshape(carry.chunk.shape)
        chunk = jnp.where(again[:, None, None], fresh_chunk, carry.chunk)
        done = jnp.where(again, 0, carry.done)
        action = jnp.take_along_axis(chunk, done[:, None, None], axis=1)[:, 0]
        return action, Plan(chunk, done + 1)


class QCState(eqx.Module):
    """Everything that training changes."""

    q: Trained[Critics]
    q_target: Critics
    flow: Trained[Flow]


@dataclass(frozen=True)
class QC:
    """(settings, spec) → init → update → policy (see :mod:`icql.algos.base`)."""

    settings: QCSettings
    spec: Spec

    @property
    def needs(self) -> Needs:
        """Windows of h steps."""
        return Needs("sequences", length=self.settings.chunk)

    def init(self, key: PRNGKeyArray) -> QCState:
        """Fresh critics, their target and flow."""
        s, spec = self.settings, self.spec
        q_key, flow_key = jax.random.split(key)
        q = make_critics(
            "global",
            observation_dim=spec.observation_dim,
            action_dim=self._chunk_dim,
            hidden=s.hidden,
            count=s.critics,
            discount=s.discount,
            local=LocalSettings(),
            context=0,
            layer_norm=True,
            activation="gelu",
            key=q_key,
        )
        flow = Flow(
            spec.observation_dim, self._chunk_dim, s.hidden, steps=s.flow_steps, key=flow_key
        )
        optimiser = adam(s.learning_rate)
        return QCState(start(q, optimiser), q, start(flow, optimiser))

    def update(self, state: QCState, batch: Batch, key: PRNGKeyArray) -> tuple[QCState, Metrics]:
        """One step on Q and the flow, both from the networks as they were; the target follows."""
        s, window, optimiser = self.settings, batch.window, adam(self.settings.learning_rate)
        assert window is not None
        steps, valid = window.steps, window.valid
        next_key, noise_key, u_key = jax.random.split(key, 3)
        state_now, chunk = steps.s[:, 0], steps.a.reshape(len(valid), -1)

        s_next = steps.s_next[:, -1]
        tries = jax.random.normal(next_key, (s.samples, *chunk.shape))
        best = self.policy(state).choose(s_next, tries)
        q_next = aggregate(state.q_target.at(s_next)(best), s.q_aggregate)
        y = chunk_target(steps.r, steps.mask, q_next, s.discount)

        def critic_loss(q: Critics) -> tuple[Array, Array]:
            values = q.at(state_now)(chunk)
            return masked_mean((values - y) ** 2, valid[:, -1]), values.mean()

        q, q_loss, q_mean = descend(state.q, optimiser, critic_loss)

        noise = jax.random.normal(noise_key, chunk.shape)
        u = jax.random.uniform(u_key, (len(chunk), 1))

        def flow_loss(flow: Flow) -> tuple[Array, None]:
            velocity = flow.velocity(state_now, flow_point(noise, chunk, u), u)
            error = flow_matching(velocity, noise, chunk).reshape(steps.a.shape)
            return masked_mean(error, valid[..., None]), None

        flow, bc_loss, _ = descend(state.flow, optimiser, flow_loss)
        metrics = {
            "critic_loss": q_loss,
            "flow_loss": bc_loss,
            "q": q_mean,
            "valid_chunks": valid[:, -1].mean(),
        }
        return QCState(q, follow(state.q_target, q.model, s.target_rate), flow), metrics

    def policy(self, state: QCState) -> ChunkPolicy:
        """Return the best-of-n policy as trained so far."""
        s = self.settings
        return ChunkPolicy(
            state.flow.model,
            state.q.model,
            s.chunk,
            self.spec.action_dim,
            s.samples,
            s.q_aggregate,
        )

    def critic(self, state: QCState) -> Critics:
        """Return the critics of chunks, whose actions are h actions side by side."""
        return state.q.model

    def diagnose(self, state: QCState, batch: Batch) -> dict[str, Any]:
        """Look at nothing more."""
        return {}

    @property
    def _chunk_dim(self) -> int:
        return self.settings.chunk * self.spec.action_dim
