"""The task table: environment, reference scores and episode limit of every known task.

Reference scores are D4RL's (random and expert return); transition counts are the paper's
(tab:retrieval_time_all). A task of one's own is added with :func:`register_task`, or by its package
through an entry point of the group `icql.tasks` that names a :class:`Task` or a list of them; the
command line then knows it like any other.
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from icql.errors import UserError, nearest
from icql.plugins import offered

if TYPE_CHECKING:
    from icql.data.transitions import DataInfo

GROUP = "icql.tasks"


@dataclass(frozen=True)
class Task:
    """One task: where a policy is run and how its return becomes a score.

    Any Gymnasium environment with flat real observations and actions will do; a `domain` other than
    "gymnasium" says which of D4RL's rules `icql.evaluation.environments` adds to it.
    """

    name: str
    env_id: str  # Gymnasium id, also as module:id
    _: KW_ONLY
    min_score: float  # scores 0
    max_score: float  # scores 100
    max_episode_steps: int
    domain: Literal["gymnasium", "adroit", "kitchen"] = "gymnasium"
    transitions: int | None = None  # in the paper, before invalid rows are left out
    d4rl_file: str | None = None  # where D4RL keeps its data, below the address of all of them
    kitchen_tasks: tuple[str, ...] = ()  # what a kitchen episode has to complete
    unit_actions: bool = True  # logged in [-1, 1], the environment's bounds; else in its own units
    d4rl: bool = False  # D4RL's own: states stay as they are and actions are clipped, as published
    noise: tuple[float, ...] = ()  # most that the simulator adds to each observation, where known

    @overload
    def normalized_score(self, returns: float) -> float: ...
    @overload
    def normalized_score(self, returns: NDArray[np.floating]) -> NDArray[np.float64]: ...
    def normalized_score(
        self, returns: float | NDArray[np.floating]
    ) -> float | NDArray[np.float64]:
        """D4RL's score, 100·(R − min)/(max − min), of one return or of an array of them."""
        span = self.max_score - self.min_score
        score = 100 * (np.asarray(returns, np.float64) - self.min_score) / span
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


def get_task(name: str) -> Task:
    """The task called `name`; a `UserError` with the nearest known name otherwise."""
    if not is_task(name):
        raise UserError(f"there is no task {name!r}.", fix=nearest(name, list_tasks()))
    return _TASKS[name]


def is_task(name: str) -> bool:
    """Whether there is a task of this name."""
    return name in _TASKS or name in list_tasks()


def register_task(task: Task) -> None:
    """Add a task of your own to the table; a name that is taken is refused."""
    if task.name in _TASKS:
        raise UserError(f"a task {task.name!r} is registered already.", fix="Choose another name.")
    _TASKS[task.name] = task


def list_tasks() -> list[str]:
    """Names of all known tasks, the paper's first, those of installed packages last."""
    _load_entry_points()
    return list(_TASKS)


def find_task(name: str) -> Task | None:
    """The task a file or dataset name speaks of, e.g. `hopper_medium-v2.hdf5`; None if none.

    Names of D4RL's own downloads are understood, and so are additions after the task's name.
    """
    file = name.replace("\\", "/").rsplit("/", 1)[-1].split(".", 1)[0]
    stem = file.replace("_", "-").lower()
    # a name without a level, such as `hopper`, is too little to go by unless it is all there is
    fitting = [
        task
        for task in map(get_task, list_tasks())
        if stem == task.name
        or ("-" in task.name and stem.startswith(f"{task.name}-"))
        or (task.d4rl_file is not None and file == PurePosixPath(task.d4rl_file).stem)
    ]
    return max(fitting, key=lambda task: len(task.name)) if fitting else None


def find_env_task(env_id: str, name: str = "") -> Task | None:
    """The task that is played in an environment; of several, the one most like `name`.

    None if there is none, or if several are alike but would score differently.
    """
    fitting = [task for task in map(get_task, list_tasks()) if task.env_id == env_id]
    asked = _words(name)

    def likeness(task: Task) -> tuple[int, int]:
        own = _words(task.name)
        return len(own & asked), -len(own - asked)

    best = max(map(likeness, fitting), default=None)
    found = [task for task in fitting if likeness(task) == best]
    scores = {(t.min_score, t.max_score, t.max_episode_steps, t.kitchen_tasks) for t in found}
    return found[0] if len(scores) == 1 else None


def _words(name: str) -> set[str]:
    """The words of a name, without its version."""
    return {word for word in re.split(r"[^a-z0-9]+|v[0-9]+$", name.lower()) if word}


@cache
def _load_entry_points() -> None:
    for task in offered(GROUP, Task):
        if _TASKS.get(task.name) != task:  # the package may have registered it itself
            register_task(task)


def _task(name: str, env_id: str, low: float, high: float, limit: int, **more: Any) -> Task:
    scores: Any = {"min_score": low, "max_score": high}
    return Task(name, env_id, **scores, max_episode_steps=limit, d4rl=True, **more)


_SLIDE = ("microwave", "kettle", "light switch", "slide cabinet")
_BURNER = ("microwave", "kettle", "bottom burner", "light switch")
_WALKER = _task("walker2d", "Walker2d-v4", 1.629008, 4592.3, 1000)
_HOPPER = _task("hopper", "Hopper-v4", -20.272305, 3234.3, 1000)
_CHEETAH = _task("halfcheetah", "HalfCheetah-v4", -280.178953, 12135.0, 1000)
_PEN = _task("pen", "AdroitHandPen-v1", 96.262799, 3076.8331017826877, 100, domain="adroit")
_HAMMER = _task(
    "hammer", "AdroitHandHammer-v1", -274.856578, 12794.134825156867, 200, domain="adroit"
)
_DOOR = _task("door", "AdroitHandDoor-v1", -56.512833, 2880.5693087298737, 200, domain="adroit")
# D4RL's kitchen shakes what it shows of each joint by a tenth of that joint's amplitude (its
# franka_robot.py and franka_config.xml): robot, objects, and the goal not at all.
_LARGE, _FINE, _FINEST = 0.01, 0.0005, 0.00005
_SHAKES = {(0, 9): _LARGE, (9, 11): _FINE, (11, 17): _FINEST, (17, 20): _FINE}
_SHAKES |= {(20, 23): _LARGE, (23, 26): _FINE, (26, 29): _LARGE, (29, 30): _FINE, (30, 60): 0.0}
_KITCHEN = _task(
    "kitchen",
    "FrankaKitchen-v1",
    0.0,
    4.0,
    280,
    domain="kitchen",
    kitchen_tasks=_SLIDE,
    noise=tuple(width for (start, stop), width in _SHAKES.items() for _ in range(start, stop)),
)

_GYM, _HAND = "gym_mujoco_v2/{name}_{level}.hdf5", "hand_dapg_v1/{name}-{level}.hdf5"
_SLIDER = "kitchen_microwave_kettle_light_slider-v0.hdf5"
_BOTTOM = "kitchen_microwave_kettle_bottomburner_light-v0.hdf5"


def _levels(expert: int, medium: int, replay: int) -> dict[str, int]:
    return {"medium-expert-v2": expert, "medium-v2": medium, "medium-replay-v2": replay}


# What variants share, D4RL's file of a variant, and how many transitions the paper counts in each.
_PAPER: tuple[tuple[Task, str, dict[str, int]], ...] = (
    (_WALKER, _GYM, _levels(1_998_318, 999_322, 301_698)),
    (_HOPPER, _GYM, _levels(1_998_966, 999_998, 401_598)),
    (_CHEETAH, _GYM, _levels(1_998_000, 999_000, 201_798)),
    (_PEN, _HAND, {"human-v1": 4_975, "cloned-v1": 496_264}),
    (_HAMMER, _HAND, {"human-v1": 11_285, "cloned-v1": 996_394}),
    (_DOOR, _HAND, {"human-v1": 6_704, "cloned-v1": 995_642}),
    (_KITCHEN, f"kitchen/mini_{_SLIDER}", {"complete-v0": 3_679}),
    (_KITCHEN, f"kitchen/{_SLIDER}", {"partial-v0": 136_937}),
    (replace(_KITCHEN, kitchen_tasks=_BURNER), f"kitchen/{_BOTTOM}", {"mixed-v0": 136_937}),
)

_TASKS: dict[str, Task] = {}
for _base, _file, _variants in _PAPER:
    for _variant, _count in _variants.items():
        _level, _version = _variant.rsplit("-", 1)
        register_task(
            replace(
                _base,
                name=f"{_base.name}-{_variant}",
                transitions=_count,
                d4rl_file=_file.format(
                    name=_base.name, level=f"{_level.replace('-', '_')}-{_version}"
                ),
            )
        )
for _base in (_WALKER, _HOPPER, _CHEETAH):  # data of no published level, as `data collect` makes it
    register_task(_base)
register_task(replace(_HOPPER, name="hopper-mini"))  # ours, shipped with the package
