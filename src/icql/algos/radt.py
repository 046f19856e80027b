"""RA-DT, a port: a small DT that attends to a retrieved piece, memory and embedding of one run.

Schmied et al. 2024: a Decision Transformer that attends to a retrieved sub-trajectory. Its
experiments are grid worlds, Meta-World, DMControl and Procgen; there is no D4RL recipe, so this is
the method in our loop and on our tasks, not a reproduction.

Taken from the paper:
  * a DT embeds sub-trajectories of K steps: the mean of its state tokens after the last block;
  * the sub-trajectory is retrieved by cosine similarity of embeddings, first the `candidates` most
    similar, then one of them;
  * sub-trajectories of the query's own episode are left out;
  * every block of the policy has cross-attention to the retrieved tokens (R̂, s, a).
Different here:
  * the embedding DT is trained on the same data in the same run, for the first `pretrain` share of
    the updates, and then frozen; the policy learns from the first update on. In the paper the DT
    is trained beforehand;
  * the memory holds `memory_size` sub-trajectories drawn from the batches, renewed `refresh` at a
    time, and travels with the policy. In the paper it is an index of the whole data;
  * which of the candidates: the one with the largest return-to-go, in training too. Officially,
    while acting, the one whose similarity and return of the whole trajectory, each scaled to
    [0, 1], add up to most; in training similarity (and the same task) alone;
  * retrieved tokens are embedded as the query's are and enter cross-attention so, officially by
    embeddings and an encoder of their own; layers are DT's (ReLU), officially GELU;
  * the sizes and the number of updates are DT's (128 wide, 3 layers, 1 head, windows of 20, batches
    of 64; 100,000), the official ones 512, 4, 8, 50, 128 and 200,000.
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from icql.algos.base import Batch, Metrics, Spec
from icql.algos.dt import DTPolicy, SequenceLearner, action_loss, trajectory_of
from icql.algos.optimise import Trained, descend
from icql.nn.mlp import in_precision
from icql.nn.transformer import DecisionTransformer, History, Trajectory
from icql.settings.algorithms import RADTSettings

NO_EPISODE, ACTING = -1, -2  # an empty place in the memory; a query from outside the data


class Archive(eqx.Module):
    """Sub-trajectories with their embeddings; the oldest is replaced first."""

    trajectories: Trajectory  # leading axis m
    embeddings: Float[Array, "m width"]
    episode: Int[Array, " m"]
    written: Int[Array, ""]

    @classmethod
    def empty(cls, s: RADTSettings, spec: Spec) -> Archive:
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
    ) -> Archive:
        """Put r sub-trajectories in the place of the oldest ones."""
        size, count = len(self.episode), len(episode)
        place = (self.written + jnp.arange(count)) % size

        def put(old: Array, new: Array) -> Array:
            return old.at[place].set(new)

        return Archive(
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


class RADTPolicy(DTPolicy):
    """Asks for a return and acts by the last K steps and what they call to mind."""

    embedder: DecisionTransformer
    memory: Archive
    candidates: int = eqx.field(static=True)

    def predict(self, steps: Trajectory) -> Float[Array, "rows act"]:
        """Retrieve by the history so far, then act."""
        query = self.embedder.embedding(steps)
        outside = jnp.full(len(query), ACTING, jnp.int32)
        retrieved = self.memory.retrieve(query, outside, self.candidates)
        return self.model(steps, retrieved)[:, -1]


class RADTState(eqx.Module):
    """Everything that training changes."""

    embedder: Trained[DecisionTransformer]
    pi: Trained[DecisionTransformer]
    memory: Archive
    step: Int[Array, ""]


@dataclass(frozen=True)
class RADT(SequenceLearner[RADTSettings]):
    """(settings, spec) → init → update → policy (see :mod:`icql.algos.base`)."""

    def init(self, key: PRNGKeyArray) -> RADTState:
        """Fresh Transformers and an empty memory."""
        embedder_key, pi_key = jax.random.split(key)
        return RADTState(
            embedder=self.fresh(embedder_key),
            pi=self.fresh(pi_key, cross=True),
            memory=Archive.empty(self.settings, self.spec),
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

        learned, dt_loss, _ = descend(state.embedder, self.optimiser(), embedder_loss)
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

        pi, pi_loss, _ = descend(state.pi, self.optimiser(), policy_loss)
        metrics = {
            "policy_loss": pi_loss,
            "embedder_loss": dt_loss,
            "retrieved": retrieved.valid.any(-1).mean(),
        }
        return RADTState(embedder, pi, memory, state.step + 1), metrics

    def policy(self, state: RADTState) -> RADTPolicy:
        """Return the policy as trained so far, with its memory."""
        s = self.settings
        model, embedder = in_precision((state.pi.model, state.embedder.model), "float32")
        return RADTPolicy(model, self.goal, s.length, embedder, state.memory, s.candidates)
