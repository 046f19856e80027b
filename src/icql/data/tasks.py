"""The task table: environment, reference scores and episode limit of every known task.

Reference scores are D4RL's (random and expert return); transition counts are the paper's
(tab:retrieval_time_all).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, overload

import numpy as np
from numpy.typing import NDArray

from icql.errors import UserError, nearest

if TYPE_CHECKING:
    from icql.data.transitions import DataInfo

Domain = Literal["mujoco", "adroit", "kitchen"]


@dataclass(frozen=True)
class Task:
    """One task: where a policy is run and how its return becomes a score."""

    name: str
    env_id: str  # Gymnasium id
    domain: Domain
    min_score: float  # scores 0
    max_score: float  # scores 100
    max_episode_steps: int
    transitions: int | None = None  # in the paper, before invalid rows are left out
    kitchen_tasks: tuple[str, ...] = ()  # what a kitchen episode has to complete
    unit_actions: bool = True  # actions lie in [-1, 1]

    @overload
    def normalized_score(self, returns: float) -> float: ...
    @overload
    def normalized_score(self, returns: NDArray[np.floating]) -> NDArray[np.float64]: ...
    def normalized_score(
        self, returns: float | NDArray[np.floating]
    ) -> float | NDArray[np.float64]:
        """D4RL's score, 100·(R − min)/(max − min), of one return or of an array of them."""
        score = 100 * (np.asarray(returns, np.float64) - self.min_score) / self._range
        return float(score) if score.ndim == 0 else score

    def score_of(self, rewards: NDArray[np.floating]) -> float:
        """What one logged episode scores, before normalisation.

        The sum of its rewards; in the kitchen, whose logged reward is the number of tasks done
        so far, the largest one.
        """
        return float(rewards.max() if self.domain == "kitchen" else rewards.sum())

    def behaviour_score(self, info: DataInfo) -> float | None:
        """Mean normalised score of the logged episodes; None if no whole episode was logged."""
        if not info.episode_scores:
            return None
        return float(self.normalized_score(np.asarray(info.episode_scores)).mean())

    @property
    def _range(self) -> float:
        return self.max_score - self.min_score


def get_task(name: str) -> Task:
    """The task called `name`; a `UserError` with the nearest known name otherwise."""
    if name not in _TASKS:
        raise UserError(f"there is no task {name!r}.", fix=nearest(name, list_tasks()))
    return _TASKS[name]


def register_task(task: Task) -> None:
    """Add a task of your own to the table; a name that is taken is refused."""
    if task.name in _TASKS:
        raise UserError(f"a task {task.name!r} is registered already.", fix="Choose another name.")
    _TASKS[task.name] = task


def list_tasks() -> list[str]:
    """Names of all known tasks, the paper's first."""
    return list(_TASKS)


def find_task(name: str) -> Task | None:
    """The task a file or dataset name speaks of, e.g. `hopper_medium-v2.hdf5`; None if none.

    Names of D4RL's own downloads are understood, and so are additions after the task's name.
    """
    stem = name.replace("\\", "/").rsplit("/", 1)[-1].split(".", 1)[0]
    stem = _D4RL_FILES.get(stem, stem.replace("_", "-").lower())
    # a name without a level, such as `hopper`, is too little to go by unless it is all there is
    fitting = [
        task for task in _TASKS if stem == task or ("-" in task and stem.startswith(f"{task}-"))
    ]
    return _TASKS[max(fitting, key=len)] if fitting else None


# D4RL's downloads of the kitchen data carry names of their own.
_D4RL_FILES = {
    "mini_kitchen_microwave_kettle_light_slider-v0": "kitchen-complete-v0",
    "kitchen_microwave_kettle_light_slider-v0": "kitchen-partial-v0",
    "kitchen_microwave_kettle_bottomburner_light-v0": "kitchen-mixed-v0",
}

_SLIDE = ("microwave", "kettle", "light switch", "slide cabinet")
_BURNER = ("microwave", "kettle", "bottom burner", "light switch")
_HOPPER = Task("hopper", "Hopper-v4", "mujoco", -20.272305, 3234.3, 1000)
_KITCHEN = Task("kitchen", "FrankaKitchen-v1", "kitchen", 0.0, 4.0, 280, kitchen_tasks=_SLIDE)

# What the variants of a task share, and how many transitions the paper counts in each.
_PAPER: tuple[tuple[Task, dict[str, int]], ...] = (
    (
        Task("walker2d", "Walker2d-v4", "mujoco", 1.629008, 4592.3, 1000),
        {"medium-expert-v2": 1_998_318, "medium-v2": 999_322, "medium-replay-v2": 301_698},
    ),
    (
        _HOPPER,
        {"medium-expert-v2": 1_998_966, "medium-v2": 999_998, "medium-replay-v2": 401_598},
    ),
    (
        Task("halfcheetah", "HalfCheetah-v4", "mujoco", -280.178953, 12135.0, 1000),
        {"medium-expert-v2": 1_998_000, "medium-v2": 999_000, "medium-replay-v2": 201_798},
    ),
    (
        Task("pen", "AdroitHandPen-v1", "adroit", 96.262799, 3076.8331017826877, 100),
        {"human-v1": 4_975, "cloned-v1": 496_264},
    ),
    (
        Task("hammer", "AdroitHandHammer-v1", "adroit", -274.856578, 12794.134825156867, 200),
        {"human-v1": 11_285, "cloned-v1": 996_394},
    ),
    (
        Task("door", "AdroitHandDoor-v1", "adroit", -56.512833, 2880.5693087298737, 200),
        {"human-v1": 6_704, "cloned-v1": 995_642},
    ),
    (_KITCHEN, {"complete-v0": 3_679, "partial-v0": 136_937}),
    (replace(_KITCHEN, kitchen_tasks=_BURNER), {"mixed-v0": 136_937}),
)

_TASKS: dict[str, Task] = {
    f"{base.name}-{variant}": replace(base, name=f"{base.name}-{variant}", transitions=count)
    for base, variants in _PAPER
    for variant, count in variants.items()
}
for _task, _ in _PAPER[:3]:  # data of no published level: what `icql data collect` makes
    register_task(_task)
register_task(replace(_HOPPER, name="hopper-mini"))  # ours, shipped with the package
