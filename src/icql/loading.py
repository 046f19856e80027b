"""Trained policies and critics back from a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from icql.algos.base import Algorithm, Spec
from icql.algos.registry import make_algorithm
from icql.data import Task, Transitions, get_task, load_dataset
from icql.errors import UserError
from icql.evaluation import EnvPool, Rollouts
from icql.evaluation.policies import act, evaluate_policies
from icql.evaluation.rollout import Progress
from icql.nn.critics import Critics
from icql.nn.policies import Standardised
from icql.retrieval import Retriever
from icql.settings.data import ContextSettings
from icql.settings.grid import Member, members_of, say_settings
from icql.training.device import Normaliser, fit_normaliser, pack, unpack
from icql.training.plan import recorded_settings
from icql.training.run_folder import RunFolder
from icql.weights import load_weights

Place = Mapping[str, float]  # in a grid of settings: values by dotted name


def load_policy(run: str | Path) -> TrainedPolicy:
    """Load the final policies of a run; nothing of the data or of retrieval is needed."""
    folder = RunFolder.open(run)
    manifest, algorithm = folder.manifest, algorithm_of(folder)
    _require_finished(folder, folder.policy_path)
    members = _members(manifest)
    width = (len(members), manifest["observation_dim"])
    like = eqx.filter_eval_shape(
        lambda keys: Standardised(
            eqx.filter_vmap(lambda k: algorithm.policy(algorithm.init(k)))(keys),
            jnp.zeros(width),
            jnp.ones(width),
        ),
        _keys(members),
    )
    task = None if manifest["task"] is None else get_task(manifest["task"])
    return TrainedPolicy(load_weights(folder.policy_path, like), members, task)


def load_critic(run: str | Path, *, dataset: str | Path | None = None) -> TrainedCritic:
    """Load the final critics of a run together with the data that a local critic retrieves from.

    `dataset` says where the data is now, if not where it was when the run was made.
    """
    folder = RunFolder.open(run)
    manifest, algorithm = folder.manifest, algorithm_of(folder)
    if not hasattr(algorithm, "critic"):
        raise UserError(f"{manifest['algo']} has no critic.", where=str(folder.path))
    _require_finished(folder, folder.critic_path)
    data = load_dataset(dataset or manifest["dataset"], task=manifest["task"])
    if data.content_hash() != manifest["data_hash"]:
        raise UserError(
            f"the run was made on other data (hash {manifest['data_hash'][:12]}, "
            f"this is {data.content_hash()[:12]}).",
            where=data.info.source or data.info.name,
            fix="Name the right file with dataset=….",
        )
    members = _members(manifest)
    like = eqx.filter_eval_shape(
        lambda keys: eqx.filter_vmap(lambda k: algorithm.critic(algorithm.init(k)))(keys),
        _keys(members),
    )
    normaliser = fit_normaliser(data, algorithm.settings.data)
    return TrainedCritic(
        load_weights(folder.critic_path, like),
        members,
        data,
        normaliser,
        algorithm.needs.context,
    )


@dataclass(frozen=True)
class TrainedPolicy:
    """Final policies of every training seed, normaliser included."""

    policies: Any  # stacked along a leading axis of members
    members: tuple[Member, ...]  # training seeds and, of a grid, the settings
    task: Task | None

    @property
    def seeds(self) -> tuple[int, ...]:
        """The training seed of every member."""
        return tuple(member.seed for member in self.members)

    def act(
        self,
        observations: ArrayLike,
        *,
        seed: int | None = None,
        settings: Place | None = None,
    ) -> NDArray[np.float32]:
        """Actions for one observation (obs,) or a batch (B, obs), by one training seed's policy.

        A policy that remembers its episode (DT, RA-DT, QC) takes each observation as the first of
        an episode; to let it play on, use `evaluate`, or step `policies` (see `MemoryPolicy`).
        `seed` is a training seed of the run and `settings` a place in its grid, if it has one; the
        first that fits, where not given.
        """
        batch = np.asarray(observations, np.float32)
        expected = self.policies.mean.shape[1]
        if batch.ndim not in (1, 2) or batch.shape[-1] != expected:
            raise UserError(
                f"must have shape ({expected},) or (B, {expected}), not {batch.shape}.",
                where="observations",
            )
        one = _member(self.policies, self.members, seed, settings)
        return np.asarray(act(one, jnp.asarray(np.atleast_2d(batch))[None])[0]).reshape(
            *batch.shape[:-1], -1
        )

    def evaluate(
        self, *, episodes: int = 10, seed: int = 0, progress: Progress | None = None
    ) -> tuple[Rollouts, ...]:
        """Play `episodes` episodes with every training seed's policy in the task's environment."""
        if self.task is None:
            raise UserError(
                "the run has no task, so there is no environment to play in.",
                fix="Name one when training: icql train --task NAME.",
            )
        with EnvPool(self.task) as environments:
            return evaluate_policies(
                self.policies,
                environments,
                episodes=episodes,
                seeds=[seed] * len(self.members),
                progress=progress,
            )


@dataclass(frozen=True)
class TrainedCritic:
    """Final critics of every training seed, and the data their contexts come from."""

    critics: Critics  # stacked along a leading axis of members
    members: tuple[Member, ...]  # training seeds and, of a grid, the settings
    data: Transitions
    normaliser: Normaliser
    context: ContextSettings | None

    def q(
        self,
        states: ArrayLike,
        actions: ArrayLike,
        *,
        seed: int | None = None,
        settings: Place | None = None,
    ) -> NDArray[np.float32]:
        """Q̂(s, a | Ω_s) of each pair, the least of the critics, on the scaled rewards: (B,)."""
        s, a = self._batch(states), jnp.asarray(np.asarray(actions, np.float32))
        critics = self._critics(seed, settings)
        return np.asarray(critics.at(self._normalised(s), self._contexts(s))(a).min(0))

    def trace(
        self,
        states: ArrayLike,
        actions: ArrayLike,
        *,
        seed: int | None = None,
        settings: Place | None = None,
    ) -> NDArray[np.float32]:
        """Q̂_ℓ(s, a | Ω_s) of the first critic after every layer: (L, B)."""
        s, a = self._batch(states), jnp.asarray(np.asarray(actions, np.float32))
        if self.context is None:
            raise UserError("a global critic has no layers of TD.", where="trace")
        member = jax.tree.map(
            lambda x: x[0] if eqx.is_array(x) else x, self._critics(seed, settings).members
        )
        return np.asarray(member.trace(self._contexts(s), self._normalised(s), a))

    def neighbours(
        self, states: ArrayLike, rows: ArrayLike | None = None
    ) -> tuple[NDArray[np.integer], NDArray[np.floating]]:
        """Rows of the data that make up the context of each state, and their distances.

        `rows` (B,) says which rows of the data the states are, -1 for none: `context.exclude` is
        about these. None: the first row with the same bits, if there is one.
        """
        return self.retriever(self._batch(states), rows=rows)

    @cached_property
    def retriever(self) -> Retriever:
        """What finds contexts as in training; the data is indexed once, when first asked."""
        if self.context is None:
            raise UserError("a global critic has no context.", where="neighbours")
        states, rewards, episode = self.data.states, self.data.rewards, self.data.episode
        return Retriever(states, rewards, self.context, episode=episode)

    def _batch(self, states: ArrayLike) -> NDArray[np.float32]:
        batch = np.asarray(states, np.float32)
        if batch.ndim != 2 or batch.shape[1] != self.data.observation_dim:
            raise UserError(
                f"must have shape (B, {self.data.observation_dim}), not {batch.shape}.",
                where="states",
            )
        return batch

    def _critics(self, seed: int | None, settings: Place | None) -> Critics:
        one = _member(self.critics, self.members, seed, settings)
        return jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, one)

    def _normalised(self, states: NDArray[np.float32]) -> Any:
        return jnp.asarray((states - self.normaliser.mean) / self.normaliser.std)

    def _contexts(self, states: NDArray[np.float32]) -> Any:
        if self.context is None:
            return None
        rows, _ = self.neighbours(states)
        packed = jnp.asarray(pack(self.data, self.normaliser, rows.ravel()))
        width = self.data.observation_dim, self.data.action_dim
        return unpack(packed.reshape(*rows.shape, -1), *width)


def algorithm_of(folder: RunFolder) -> Algorithm[Any]:
    """Return the algorithm of a run, from its recorded settings."""
    manifest, (settings, run) = folder.manifest, recorded_settings(folder)
    try:
        spec = Spec(manifest["observation_dim"], manifest["action_dim"], run.steps)
    except KeyError as missing:
        raise UserError(f"lacks {missing}.", where=str(folder.manifest_path)) from None
    return make_algorithm(manifest["algo"], settings, spec)


def _members(manifest: dict[str, Any]) -> tuple[Member, ...]:
    return members_of(manifest["seeds"], manifest.get("grid", {}))


def _keys(members: tuple[Member, ...]) -> Any:
    return jax.eval_shape(lambda: jnp.stack([jax.random.key(m.seed) for m in members]))


def _member(
    stacked: Any, members: tuple[Member, ...], seed: int | None, settings: Place | None
) -> Any:
    """The slice of the first member that fits, still with its leading axis."""
    asked = settings or {}
    fitting = (
        i
        for i, member in enumerate(members)
        if seed in (None, member.seed) and asked.items() <= member.settings.items()
    )
    first = next(fitting, None)
    if first is None:
        wanted = say_settings(asked) if seed is None else Member(seed, asked).label
        raise UserError(
            f"the run has no {wanted}; it has {'; '.join(m.label for m in members)}.",
            where="settings" if asked else "seed",
        )
    return jax.tree.map(lambda x: x[first : first + 1] if eqx.is_array(x) else x, stacked)


def _require_finished(folder: RunFolder, path: Path) -> None:
    if not path.is_file():
        raise UserError(
            f"has no {path.name}: the run is not finished.",
            where=str(folder.path),
            fix=f"Go on with it: icql train --resume --out {folder.path}",
        )
