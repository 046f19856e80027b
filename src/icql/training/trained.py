"""Trained policies and critics back from a run folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from icql.algos.base import Algorithm, HasCritics, Spec
from icql.algos.registry import make_algorithm
from icql.data import Task, Transitions, get_task, load_dataset
from icql.data.signals import Signals
from icql.errors import UserError
from icql.evaluation.rollout import EnvPool, Progress, Rollouts, act_all, evaluate_policies
from icql.evidence.alarm import Alarm, Rings, fit_alarm
from icql.evidence.watch import Watched
from icql.graph.critic import GraphCritic
from icql.nn.policies import Standardised
from icql.retrieval.cache import read_fitted
from icql.retrieval.metric import fitted_space
from icql.settings.contexts import SpaceName
from icql.settings.grid import Member, say_members
from icql.settings.shared import CriticSettings
from icql.training.device import fit_normaliser, state_limit
from icql.training.plan import Plan
from icql.training.run_folder import RunFolder
from icql.training.trained_critic import TrainedCritic, Which, at, index_of
from icql.weights import check_numbers, load_arrays, load_weights


def load_policy(run: str | Path) -> TrainedPolicy:
    """Load the final policies of a run; nothing of the data or of retrieval is needed."""
    folder, plan, algorithm = _opened(run)
    _require_finished(folder, folder.policy_path)
    width = algorithm.spec.observation_dim

    def made(key: Any) -> Standardised:
        policy: Any = algorithm.policy(algorithm.init(key))
        limit = state_limit(plan.settings.data)
        return Standardised(policy, jnp.zeros(width), jnp.ones(width), limit)

    like = _stacked(plan, made)
    task = None if plan.task is None else get_task(plan.task)
    policies = load_weights(folder.policy_path, like, of=folder.identity)
    return TrainedPolicy(policies, plan.members, task, folder.path, folder.signals)


def load_critic(
    run: str | Path, *, dataset: str | Path | None = None, columns: str | Path | None = None
) -> TrainedCritic | GraphCritic:
    """Load the final critics of a run together with the data that a local critic retrieves from.

    `dataset` says where the data is now, if not where it was when the run was made, and `columns`
    where its mapping is, if not beside it. The critic of
    icql-graph is the solved graph.
    """
    folder, plan, algorithm = _opened(run)
    if not has_critic(run):
        raise UserError(f"{plan.algo} has no critic.", where=str(folder.path))
    learned = isinstance(algorithm, HasCritics)
    _require_finished(folder, folder.critic_path if learned else folder.graph_path)
    return critic_on(run, data_of(folder, dataset=dataset, columns=columns))


def critic_on(run: str | Path, data: Transitions) -> TrainedCritic | GraphCritic:
    """The critic of a finished run that has one, on its data (`data_of`)."""
    folder, plan, algorithm = _opened(run)
    if not isinstance(algorithm, HasCritics):
        q = load_arrays(folder.graph_path, of=folder.identity).get("q")
        if q is None or q.shape != (len(data),):
            raise UserError("does not hold a value for every row.", where=str(folder.graph_path))
        check_numbers(folder.graph_path, "q", q)
        return GraphCritic(q, data, plan.settings.draw)
    like = _stacked(plan, lambda k: algorithm.critic(algorithm.init(k)))
    context, space = algorithm.needs.context, None
    if context is not None and folder.space_path.is_file():
        space = fitted_space(context.metric, read_fitted(folder.space_path))
        folder.check_space(space.digest)
    return TrainedCritic(
        load_weights(folder.critic_path, like, of=folder.identity),
        plan.members,
        data,
        fit_normaliser(data, plan.settings.data),
        context,
        space,
        run_discount(plan),
    )


def has_critic(run: str | Path) -> bool:
    """Whether a run has a critic: a network's, or the solved graph."""
    _, plan, algorithm = _opened(run)
    return isinstance(algorithm, HasCritics) or plan.settings.draw.by != "uniform"


def run_discount(plan: Plan) -> float:
    """γ of a run's critics or graph; 0.99 where it has neither."""
    settings = plan.settings
    if isinstance(settings, CriticSettings):
        return settings.discount
    return float(settings.draw.discount)


def data_of(
    folder: RunFolder, *, dataset: str | Path | None = None, columns: str | Path | None = None
) -> Transitions:
    """Load the data that a run was made on, known by its hash, wherever it is now.

    Raises:
        UserError: it is not where it was and no other place is named, or it is other data.
    """
    plan = Plan.read(folder)
    known = plan.columns if dataset is None else None
    place = dataset or plan.dataset
    with folder.missing(place):
        data = load_dataset(place, task=plan.task, columns=columns or known)
    folder.check_data(data)
    return data


@dataclass(frozen=True)
class TrainedPolicy:
    """Final policies of every training seed, normaliser included."""

    policies: Any  # stacked along a leading axis of members
    members: tuple[Member, ...]  # training seeds and, of a grid, the settings
    task: Task | None
    run: Path  # the folder they come from
    signals: Signals = field(default_factory=Signals)  # what the data's numbers are called

    def __repr__(self) -> str:
        return f"<TrainedPolicy {self.run}: {say_members(self.members)}>"

    @property
    def seeds(self) -> tuple[int, ...]:
        """The training seed of every member."""
        return tuple(member.seed for member in self.members)

    def act(
        self, observations: ArrayLike, *, normalised: bool = False, **which: Unpack[Which]
    ) -> NDArray[Any]:
        """Actions for one observation (obs,) or a batch (B, obs), by one member's policy.

        Observations are in the units of the data, and so are actions where the log had
        `action_bounds` (`signals` has names, units and bounds); otherwise, and with `normalised`,
        they are the policy's own in [-1, 1]. Of discrete actions the number of the choice is
        returned (`signals.choices` has their names), or with `normalised` a one-hot row.
        A policy that remembers its episode (DT, RA-DT, QC) takes each observation as the first of
        an episode; to let it play on, use `evaluate`, or step `policies` (see `MemoryPolicy`).
        `seed` is a training seed of the run and `settings` a place in its grid, if it has one; the
        first that fits, where not given.
        """
        batch = self._observed(observations)
        i = index_of(self.members, which)
        actions = act_all(at(self.policies, slice(i, i + 1)), jnp.atleast_2d(batch)[None])
        found = np.asarray(actions[0]).reshape(*batch.shape[:-1], -1)
        if self.signals.choices and not normalised:
            return np.asarray(found.argmax(-1))
        return found if normalised else self.signals.in_units(found)

    def member(self, place: int) -> Standardised:
        """One of the policies by itself."""
        one: Standardised = at(self.policies, place)
        return one

    def alarm(self, states: ArrayLike) -> Rings:
        """Whether nothing like each state (B, obs) was logged, and how far the nearest one is.

        Needs the run's data where it was; `icql.load_alarm` says more, and takes another place.
        """
        return self._alarm(states)

    def watch(self, states: ArrayLike) -> Watched:
        """The same of an episode's states so far (T, obs), in order, and which sensors are stuck.

        Takes up to a minute when first asked.
        """
        return self._alarm.watch(states)

    @cached_property
    def _alarm(self) -> Alarm:
        return load_alarm(self.run)

    def export(
        self,
        path: str | Path,
        *,
        states: int = 20_000,
        rate: float = 0.05,
        alarm: bool = True,
        dataset: str | Path | None = None,
        **which: Unpack[Which],
    ) -> dict[str, Any]:
        """Write one member's policy and its alarm as an ONNX file, and its card beside it.

        The file is compared with this policy on 10,000 states first; nothing is written where they
        differ (docs/export.md).

        Args:
            path: `….onnx`; the card is the same with `.md`.
            states: how many logged states the alarm keeps at most.
            rate: of its false alarms, in new episodes like the logged ones.
            alarm: False leaves it out; then the run's data is not needed.
            dataset: where the data is now, if not where it was when the run was made.
            **which: `seed` and `settings`, as in `act`.

        Returns:
            The card.
        """
        from icql.training.exported import export_trained

        return export_trained(
            self,
            index_of(self.members, which),
            Path(path),
            states=states if alarm else None,
            rate=rate,
            dataset=dataset,
        )

    def _observed(self, observations: ArrayLike) -> NDArray[np.float32]:
        """Observations as the policies take them; a `UserError` says what they are instead."""
        width, names = self.policies.mean.shape[1], self.signals.observation
        order = f"Its numbers, in this order: {self.signals.told(names)}." if names else ""
        try:
            batch = np.asarray(observations, np.float32)
        except (ValueError, TypeError) as error:
            raise UserError(
                f"must be rows of {width} numbers each.", where="observations", fix=order
            ) from error
        if batch.ndim not in (1, 2) or batch.shape[-1] != width:
            raise UserError(
                f"must have shape ({width},) or (B, {width}), not {batch.shape}.",
                where="observations",
                fix=order,
            )
        if not np.isfinite(batch).all():
            row, column = np.argwhere(~np.isfinite(np.atleast_2d(batch)))[0]
            name = f" ({names[column]})" if names else ""
            raise UserError(
                f"column {column}{name} of row {row} is {np.atleast_2d(batch)[row, column]}.",
                where="observations",
                fix="Fill or drop what was not measured before asking the policy.",
            )
        return batch

    def evaluate(
        self, *, episodes: int = 10, seed: int = 0, progress: Progress | None = None
    ) -> tuple[Rollouts, ...]:
        """Play `episodes` episodes with every training seed's policy in the task's environment."""
        if self.task is None:
            raise UserError(
                "the run has no task, so there is no environment to play in.",
                fix="Name one when training: icql train --task NAME.",
            )
        with EnvPool(self.task, self.signals) as environments:
            return evaluate_policies(
                self.policies,
                environments,
                episodes=episodes,
                seeds=[seed] * len(self.members),
                progress=progress,
            )


def load_alarm(run: str | Path, *, rate: float = 0.05, dataset: str | Path | None = None) -> Alarm:
    """The alarm of a run: it rings where nothing like a state was in the run's data.

    `rate` is the share of false alarms in new episodes like the logged ones. Distances are measured
    as the run measured them, or by each column's own spread where it measured none.
    """
    folder = RunFolder.open(run)
    data = data_of(folder, dataset=dataset)
    return fit_alarm(data, rate=rate, space=alarm_space(Plan.read(folder)))


def alarm_space(plan: Plan) -> SpaceName:
    """Where a run's alarm measures distances."""
    space: SpaceName = plan.settings.draw.space
    return "standardised" if space == "raw" else space


def _opened(run: str | Path) -> tuple[RunFolder, Plan, Algorithm[Any]]:
    """A run folder, its plan and its algorithm."""
    folder = RunFolder.open(run)
    plan, manifest = Plan.read(folder), folder.manifest
    try:
        sizes = manifest["observation_dim"], manifest["action_dim"]
        spec = Spec(*sizes, plan.run.steps, discrete=bool(folder.signals.choices))
    except KeyError as missing:
        raise UserError(f"lacks {missing}.", where=str(folder.manifest_path)) from None
    return folder, plan, make_algorithm(plan.algo, plan.settings, spec)


def _stacked(plan: Plan, make: Callable[[Any], Any]) -> Any:
    """Shapes of what `make` gives for a key, stacked along a leading axis of members."""
    keys = jax.eval_shape(lambda: jnp.stack([jax.random.key(m.seed) for m in plan.members]))
    return eqx.filter_eval_shape(eqx.filter_vmap(make), keys)


def _require_finished(folder: RunFolder, path: Path) -> None:
    if not path.is_file():
        raise UserError(
            f"has no {path.name}: the run is not finished.",
            where=str(folder.path),
            fix=f"Go on with it: icql train --resume --out {folder.path}",
        )
