"""What an algorithm may know about its problem before it sees a batch."""

from __future__ import annotations

import numpy as np

from icql.algos.base import Spec
from icql.data.arrays import moments
from icql.data.tasks import Task
from icql.data.transitions import Transitions
from icql.errors import UserError
from icql.files import default_cache_dir
from icql.graph.deviations import Around, deviation_sizes
from icql.retrieval.neighbours import usual_space
from icql.settings.algorithms import ReBRACSettings
from icql.settings.shared import ActorSettings, AlgorithmSettings
from icql.training.device import Normaliser, reward_range
from icql.training.plan import Plan


def spec_of(plan: Plan, task: Task | None, data: Transitions, normaliser: Normaliser) -> Spec:
    """The sizes, ranges and spreads of this data, as the plan's algorithm will see it."""
    return Spec(
        data.observation_dim,
        data.action_dim,
        plan.run.steps,
        reward_range(data, normaliser),
        plan.run.precision,
        observation_noise(plan.settings, task, data, normaliser),
        discrete=bool(data.info.signals.choices),
        deviations=logged_deviations(plan.settings, data),
    )


def observation_noise(
    settings: AlgorithmSettings, task: Task | None, data: Transitions, normaliser: Normaliser
) -> tuple[float, ...]:
    """Half the width of the noise on each normalised state in training; () for none.

    Raises:
        UserError: the task knows the noise of other observations than the data's.
    """
    if not isinstance(settings, ActorSettings):
        return ()
    policy = settings.policy
    if task is not None and task.noise:
        widths = policy.noise * np.asarray(task.noise)
    else:
        widths = policy.relative_noise * moments(data.states)[1]
    if not widths.any():
        return ()
    if len(widths) != data.observation_dim:
        raise UserError(
            f"knows the noise of {len(widths)} observations, the data has {data.observation_dim}.",
            where=f"policy.noise, task {task.name if task else None}",
            fix="Name the task the data was logged in, or --policy.noise 0.",
        )
    return tuple((widths / normaliser.std).tolist())


def logged_deviations(settings: AlgorithmSettings, data: Transitions) -> tuple[float, ...]:
    """By how much logged actions deviate from those of similar states, where π is told in such."""
    if not (isinstance(settings, ReBRACSettings) and settings.q_unit == "noise"):
        return ()
    return deviation_sizes(Around(data, space=usual_space(data), cache_dir=default_cache_dir()))
