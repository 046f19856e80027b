"""RA-DT: a Decision Transformer that attends to a retrieved sub-trajectory. A port.

Schmied et al. 2024. Its experiments are grid worlds, Meta-World, DMControl and Procgen; there is no
D4RL recipe, so this is the method in our loop and on our tasks, not a reproduction.

Taken from the paper:
  * a DT embeds sub-trajectories of K steps: the mean of its state tokens after the last block;
  * the sub-trajectory is retrieved by cosine similarity of embeddings, first the `candidates` most
    similar, then among them the one with the highest utility (return-to-go);
  * sub-trajectories of the query's own episode are left out;
  * every block of the policy has cross-attention to the retrieved tokens (R̂, s, a).
Different here:
  * the embedding DT is trained on the same data in the same run, for the first `pretrain` share of
    the updates, and then frozen; the policy learns from the first update on. In the paper the DT
    is trained beforehand;
  * the memory holds `memory_size` sub-trajectories drawn from the batches, renewed `refresh` at a
    time, and travels with the policy. In the paper it is an index of the whole data;
  * utility counts in training as well; retrieved tokens enter cross-attention as embedded, without
    an encoder of their own; the sizes are DT's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from icql.algos.base import Batch, Metrics, Needs, Spec
from icql.algos.dt import (
    action_loss,
    dimensions,
    goal_of,
    make_optimiser,
    make_transformer,
    trajectory_of,
)
from icql.algos.optimise import Trained, descend, start
from icql.nn.history import Goal, History
from icql.nn.policies import first_action
from icql.nn.transformer import DecisionTransformer, Trajectory
from icql.settings.algorithms import RADTSettings

NO_EPISODE, ACTING = -1, -2  # an empty place in the memory; a query from outside the data


class Memory(eqx.Module):
    """Sub-trajectories with their embeddings; the oldest is replaced first."""

    trajectories: Trajectory  # leading axis m
    embeddings: Float[Array, "m width"]
    episode: Int[Array, " m"]
    written: Int[Array, ""]

    @classmethod
    def empty(cls, s: RADTSettings, spec: Spec) -> Memory:
        """A memory without sub-trajectories."""
        history = History.empty(s.memory_size, s.length, spec.observation_dim, spec.action_dim)
        return cls(
            history.steps,
            jnp.zeros((s.memory_size, s.width)),
            jnp.full(s.memory_size, NO_EPISODE, jnp.int32),
            jnp.zeros((), jnp.int32),
        )

    def write(
        self, new: Trajectory, embeddings: Float[Array, "r width"], episode: Int[Array, " r"]
    ) -> Memory:
        """Put r sub-trajectories in the place of the oldest ones."""
        size, count = len(self.episode), len(episode)
        place = (self.written + jnp.arange(count)) % size

        def put(old: Array, new: Array) -> Array:
            return old.at[place].set(new)

        return Memory(
            jax.tree.map(put, self.trajectories, new),
            put(self.embeddings, embeddings),
            put(self.episode, episode),
            (self.written + count) % size,
        )

    def retrieve(
        self, query: Float[Array, "b width"], episode: Int[Array, " b"], candidates: int
    ) -> Trajectory:
        """The best sub-trajectory of another episode for each query; invalid where none is."""
        usable = (self.episode != NO_EPISODE) & (self.episode != episode[:, None])
        similarity = jnp.where(usable, query @ self.embeddings.T, -jnp.inf)
        similar, place = jax.lax.top_k(similarity, candidates)
        utility = jnp.where(jnp.isfinite(similar), self.trajectories.to_go[place, 0], -jnp.inf)
        best = jnp.take_along_axis(place, utility.argmax(-1)[:, None], axis=1)[:, 0]
        found: Trajectory = jax.tree.map(lambda x: x[best], self.trajectories)
        valid = found.valid & jnp.isfinite(similar[:, :1])
        return eqx.tree_at(lambda t: t.valid, found, valid)


class RADTPolicy(eqx.Module):
    """Asks for a return and acts by the last K steps and what they call to mind."""

    model: DecisionTransformer
    embedder: DecisionTransformer
    memory: Memory
    goal: Goal
    length: int = eqx.field(static=True)
    candidates: int = eqx.field(static=True)

    def __call__(self, s: Float[Array, "... obs"]) -> Float[Array, "... act"]:
        """The first action of an episode that begins in s."""
        return first_action(self, s)

    def start(self, rows: int) -> History:
        """No history."""
        return History.empty(rows, self.length, *dimensions(self.model))

    def step(
        self,
        carry: History,
        s: Float[Array, "rows obs"],
        rewards: Float[Array, " rows"],
        fresh: Bool[Array, " rows"],
    ) -> tuple[Float[Array, "rows act"], History]:
        """Retrieve by the history so far, then act."""
        history = carry.saw(s, rewards, fresh, self.goal)
        query = self.embedder.embedding(history.steps)
        outside = jnp.full(len(s), ACTING, jnp.int32)
        retrieved = self.memory.retrieve(query, outside, self.candidates)
        action = self.model(history.steps, retrieved)[:, -1]
        return action, history.did(action)


class RADTState(eqx.Module):
    """Everything that training changes."""

    embedder: Trained[DecisionTransformer]
    pi: Trained[DecisionTransformer]
    memory: Memory
    step: Int[Array, ""]


@dataclass(frozen=True)
class RADT:
    """(settings, spec) → init → update → policy (see :mod:`icql.algos.base`)."""

    settings: RADTSettings
    spec: Spec

    @property
    def needs(self) -> Needs:
        """Windows of K steps."""
        return Needs("sequences", length=self.settings.length)

    def init(self, key: PRNGKeyArray) -> RADTState:
        """Fresh Transformers and an empty memory."""
        s, spec = self.settings, self.spec
        embedder_key, pi_key = jax.random.split(key)
        return RADTState(
            embedder=start(make_transformer(s, spec, embedder_key), self._optimiser()),
            pi=start(make_transformer(s, spec, pi_key, cross=True), self._optimiser()),
            memory=Memory.empty(s, spec),
            step=jnp.zeros((), jnp.int32),
        )

    def update(
        self, state: RADTState, batch: Batch, key: PRNGKeyArray
    ) -> tuple[RADTState, Metrics]:
        """One step on the embedding DT while it learns; retrieve; one step on the policy."""
        s, window = self.settings, batch.window
        assert window is not None
        trajectory = trajectory_of(window, s.return_scale)
        embedder_key, pi_key = jax.random.split(key)

        def embedder_loss(model: DecisionTransformer) -> tuple[Array, None]:
            return action_loss(model(trajectory, key=embedder_key), trajectory), None

        learned, dt_loss, _ = descend(state.embedder, self._optimiser(), embedder_loss)
        learning = state.step < max(1, round(s.pretrain * self.spec.steps))
        embedder = jax.tree.map(
            lambda new, old: jnp.where(learning, new, old) if eqx.is_array(new) else old,
            learned,
            state.embedder,
        )

        embeddings = embedder.model.embedding(trajectory)
        newest: tuple[Trajectory, Array, Array] = jax.tree.map(
            lambda x: x[: s.refresh], (trajectory, embeddings, window.episode)
        )
        memory = state.memory.write(*newest)
        retrieved = memory.retrieve(embeddings, window.episode, s.candidates)

        def policy_loss(model: DecisionTransformer) -> tuple[Array, None]:
            return action_loss(model(trajectory, retrieved, key=pi_key), trajectory), None

        pi, pi_loss, _ = descend(state.pi, self._optimiser(), policy_loss)
        metrics = {
            "policy_loss": pi_loss,
            "embedder_loss": dt_loss,
            "retrieved": retrieved.valid.any(-1).mean(),
        }
        return RADTState(embedder, pi, memory, state.step + 1), metrics

    def policy(self, state: RADTState) -> RADTPolicy:
        """Return the policy as trained so far, with its memory."""
        s = self.settings
        return RADTPolicy(
            state.pi.model,
            state.embedder.model,
            state.memory,
            goal_of(s),
            s.length,
            s.candidates,
        )

    def diagnose(self, state: RADTState, batch: Batch) -> dict[str, Any]:
        """Look at nothing more."""
        return {}

    def _optimiser(self) -> Any:
        return make_optimiser(self.settings, self.spec)
