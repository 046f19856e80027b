"""Online SAC: environments on the host, replay and networks on the device.

A row is one step of every environment: one batched policy call, the steps, and then as many updates
as there were steps, in one compiled call. Randomness follows from (seed, row), so a run that
was killed goes on from its checkpoint to the very same parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from icql.algos.base import Batch, Metrics, Spec
from icql.algos.sac import SAC, SACState
from icql.data.tasks import Task
from icql.errors import UserError
from icql.evaluation.rollout import EnvPool, rollout
from icql.files import read_json, write_json
from icql.nn.policies import TanhGaussianPolicy
from icql.online.envs import EnvGroup
from icql.online.journal import Journal, Replay
from icql.online.snapshot import Snapshot
from icql.seals import digest, plain, read_sealed, write_sealed
from icql.settings.algorithms import SACSettings
from icql.settings.fields import Count, Settings, Whole
from icql.weights import load_weights, save_weights

Until = Literal["medium", "end"]


@dataclass(frozen=True)
class OnlineSettings(Settings):
    """How long and how a run interacts; what it learns with is `sac`."""

    section: ClassVar[str] = "online."

    steps: Count = 1_000_000
    """Environment steps, all environments together; also the size of the replay."""
    seed: Whole = 0
    """Seed of everything random."""
    envs: Count = 8
    """Environments stepped side by side; also the number of updates per compiled call."""
    warmup: Whole = 5_000
    """Steps of uniformly random actions, without updates, at the start."""
    evaluate_every: Count = 5_000
    """Steps between evaluations until the medium policy is found."""
    evaluate_later: Count = 50_000
    """Steps between evaluations after that."""
    episodes: Count = 10
    """Episodes of the deterministic policy per evaluation."""
    medium_score: float = 100 / 3
    """Normalised score at which a policy counts as medium: a third of expert performance."""
    checkpoint_every: Count = 50_000
    """Steps between checkpoints: the most that a kill can lose."""
    sac: SACSettings = field(default_factory=SACSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.checkpoint_every < self.envs or self.steps < self.envs:
            raise UserError(
                f"must be at least the {self.envs} steps of one row.",
                where="online.steps and online.checkpoint_every",
            )


@dataclass(frozen=True)
class Evaluation:
    """Returns of the deterministic policy after `step` environment steps."""

    step: int
    score: float  # mean, normalised
    returns: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))


Listener = Callable[[str, int, int, str], None]
"""Told what is being done, how many of its steps are done, and a note: pace and latest return."""


@dataclass
class OnlineRun:
    """A run as far as it has got."""

    task: Task
    settings: OnlineSettings
    folder: Path
    state: SACState
    journal: Journal
    evaluations: list[Evaluation]
    of: str = ""  # a digest of task and settings, which its files carry
    saved: int = 0  # rows that the last checkpoint counts

    @property
    def step(self) -> int:
        """Environment steps so far."""
        return self.journal.length * self.settings.envs

    @property
    def ended(self) -> bool:
        """Whether all steps were taken."""
        return self.journal.length == len(self.journal.rewards)

    @property
    def medium(self) -> Evaluation | None:
        """The first evaluation that reached the medium score."""
        reached = (e for e in self.evaluations if e.score >= self.settings.medium_score)
        return next(reached, None)

    def snapshot(self, name: Literal["medium", "expert", "final"]) -> Path:
        """Where the policy, critics and temperature of that moment are kept."""
        return self.folder / f"{name}.safetensors"


def train_online(
    task: Task,
    settings: OnlineSettings,
    folder: Path,
    *,
    until: Until = "end",
    progress: Listener | None = None,
) -> OnlineRun:
    """Train SAC in the environment of `task`; goes on where an earlier call in `folder` stopped.

    Args:
        task: environment and reference scores.
        settings: must equal those of the earlier call, if there was one.
        folder: gets `settings.json`, `evaluations.json`, checkpoint, journal and snapshots.
        until: "medium" stops at the first evaluation that reaches the medium score.
        progress: called after every row.

    Returns:
        The run. `medium.safetensors` exists once `run.medium` is set, `expert.safetensors`, the
        best policy so far, after an evaluation, `final.safetensors` at the end.
    """
    group = EnvGroup(task, settings.envs, settings.seed)
    sac = SAC(settings.sac, Spec(group.observation_dim, group.action_dim, settings.steps))
    run, replay = open_run(task, settings, folder, group, sac)
    key = jax.random.key(settings.seed)
    tell = teller(progress, f"SAC on {task.env_id}", settings.steps, run.step)
    with EnvPool(task) as pool:
        while not (run.ended or (until == "medium" and run.medium is not None)):
            row = run.journal.length
            act_key, learn_key = jax.random.split(jax.random.fold_in(key, row + 1))
            warm = row * settings.envs < settings.warmup
            draw = uniform_actions if warm else sampled_actions
            actions = np.asarray(draw(run.state.pi.model, group.observations, act_key))
            new = run.journal.step(group, actions)
            run.state, replay, _ = learn(
                run.state, replay, new, learn_key, sac=sac, updates=0 if warm else settings.envs
            )
            if not warm and _due(run):
                run.evaluations.append(_evaluate(run, pool))
                _keep(run)
            tell(run.step, run.evaluations)
            if _passed(run, settings.checkpoint_every):
                _checkpoint(run)
    group.close()
    _checkpoint(run)
    if run.ended:
        save_weights(run.snapshot("final"), Snapshot.of(run.state), of=run.of)
    return run


def teller(
    listener: Listener | None, label: str, steps: int, first: int
) -> Callable[[int, list[Evaluation]], None]:
    """Tells `listener` how far a piece of work has got that begins at step `first`."""
    begin = time.monotonic()

    def tell(step: int, evaluations: list[Evaluation]) -> None:
        if listener is not None:
            rate = (step - first) / max(time.monotonic() - begin, 1e-9)
            latest = f", return {evaluations[-1].mean:,.0f}" if evaluations else ""
            listener(label, step, steps, f"{rate:,.0f}/s{latest}")

    return tell


@partial(jax.jit, static_argnames=("sac", "updates"), donate_argnames=("state", "replay"))
def learn(
    state: SACState,
    replay: Replay,
    new: Float[Array, "envs width"],
    key: PRNGKeyArray,
    *,
    sac: SAC,
    updates: int,
) -> tuple[SACState, Replay, Metrics]:
    """Write new rows to the replay, then make `updates` updates; metrics are the last update's."""
    replay = replay.add(new)
    if updates == 0:
        return state, replay, {}

    def update(state: SACState, key: PRNGKeyArray) -> tuple[SACState, Metrics]:
        sample_key, update_key = jax.random.split(key)
        batch = Batch(replay.sample(sample_key, sac.settings.batch_size))
        return sac.update(state, batch, update_key)

    state, metrics = jax.lax.scan(update, state, jax.random.split(key, updates))
    return state, replay, jax.tree.map(lambda m: m[-1], metrics)


@jax.jit
def sampled_actions(
    policy: TanhGaussianPolicy, s: Float[Array, "envs obs"], key: PRNGKeyArray
) -> Float[Array, "envs act"]:
    """a ~ π(·|s)."""
    return policy.sample(s, key=key)[0]


@jax.jit
def uniform_actions(
    policy: TanhGaussianPolicy, s: Float[Array, "envs obs"], key: PRNGKeyArray
) -> Float[Array, "envs act"]:
    """Actions drawn uniformly from [-1, 1]."""
    return jax.random.uniform(key, (len(s), policy.action_dim), minval=-1, maxval=1)


mean_actions = jax.jit(TanhGaussianPolicy.__call__)  # the deterministic policy


def asked_of(task: Task, settings: OnlineSettings) -> dict[str, Any]:
    """All that a run follows from, as JSON gives it back."""
    return dict(plain({"task": asdict(task), "settings": asdict(settings)}))


def open_run(
    task: Task, settings: OnlineSettings, folder: Path, group: EnvGroup, sac: SAC
) -> tuple[OnlineRun, Replay]:
    """A fresh run, or the one in `folder` as its last checkpoint left it."""
    rows = settings.steps // settings.envs
    state = sac.init(jax.random.fold_in(jax.random.key(settings.seed), 0))
    asked, path = asked_of(task, settings), folder / "settings.json"
    whose = digest(asked)
    run = OnlineRun(task, settings, folder, state, Journal.empty(rows, group, whose), [], whose)
    replay = Replay.empty(rows * settings.envs, sac.spec.observation_dim, sac.spec.action_dim)
    if not path.exists():
        write_json(path, asked)
    elif read_json(path) != asked:
        raise UserError(
            "the run in this folder has other settings.",
            where=str(path),
            fix="Give the same settings to go on with it, or another folder.",
        )
    checkpoint = folder / "checkpoint.safetensors"
    if not checkpoint.exists():
        if _rows_saved(run):  # else it was stopped before its first
            raise UserError(
                "is missing, though the run had got that far.",
                where=str(checkpoint),
                fix="Put it back, or remove the folder to begin anew.",
            )
        run.journal.load(folder / "journal", rows=0)
        return run, replay
    stored = load_weights(checkpoint, _checkpointed(run), of=sealed_by(folder, whose))
    row, run.state = int(stored["row"]), stored["state"]
    run.saved = row
    run.journal.load(folder / "journal", rows=row)
    if not run.ended:  # else nothing is stepped any more, and another machine may sample from it
        run.journal.restore(group)
    for e in _read_evaluations(run):
        if e["step"] <= run.step:  # a resumed run makes the later ones again
            run.evaluations.append(Evaluation(e["step"], e["score"], tuple(e["returns"])))
    if row:
        replay = replay.add(jnp.asarray(run.journal.packed(0, row)))
    return run, replay


def _checkpoint(run: OnlineRun) -> None:
    """Journal first, then the file that says how much of it counts."""
    run.journal.save(run.folder / "journal")
    _write_evaluations(run)
    save_weights(run.folder / "checkpoint.safetensors", _checkpointed(run), of=run.of)
    run.saved = run.journal.length
    _write_evaluations(run)  # which then say that there is one


def _checkpointed(run: OnlineRun) -> dict[str, Any]:
    return {"row": jnp.asarray(run.journal.length, jnp.int32), "state": run.state}


def _passed(run: OnlineRun, every: int) -> bool:
    """Whether the last row went past a multiple of `every` steps."""
    return run.step // every > (run.step - run.settings.envs) // every


def _due(run: OnlineRun) -> bool:
    s = run.settings
    return run.ended or _passed(run, s.evaluate_every if run.medium is None else s.evaluate_later)


def _evaluate(run: OnlineRun, pool: EnvPool) -> Evaluation:
    played = rollout(
        partial(mean_actions, run.state.pi.model),
        pool,
        episodes=run.settings.episodes,
        seed=run.settings.seed,
    )
    score = float(played.normalized(run.task).mean())
    return Evaluation(run.step, score, tuple(played.returns.tolist()))


def _keep(run: OnlineRun) -> None:
    """Write the evaluations, and a snapshot if the medium or a better policy was just found."""
    _write_evaluations(run)
    latest = run.evaluations[-1]
    if run.medium is latest:
        save_weights(run.snapshot("medium"), Snapshot.of(run.state), of=run.of)
    if all(latest.score > earlier.score for earlier in run.evaluations[:-1]):
        save_weights(run.snapshot("expert"), Snapshot.of(run.state), of=run.of)


def _write_evaluations(run: OnlineRun) -> None:
    found = [asdict(e) for e in run.evaluations]
    content = {"of": run.of, "saved": run.saved, "evaluations": found}
    write_sealed(run.folder / "evaluations.json", content)


def sealed_by(folder: Path, of: str) -> str | None:
    """What the files of a run carry; None: one made before they carried anything."""
    path = folder / "evaluations.json"
    return None if path.is_file() and isinstance(read_json(path), list) else of


def _rows_saved(run: OnlineRun) -> int:
    """How many rows the last checkpoint counted, whether it is there or not."""
    known = (run.folder / "evaluations.json").is_file() and sealed_by(run.folder, run.of)
    return int(_evaluations_file(run).get("saved", 0)) if known else 0


def _read_evaluations(run: OnlineRun) -> list[dict[str, Any]]:
    if sealed_by(run.folder, run.of) is None:
        return list(read_json(run.folder / "evaluations.json"))
    return list(_evaluations_file(run)["evaluations"])


def _evaluations_file(run: OnlineRun) -> dict[str, Any]:
    content: dict[str, Any] = read_sealed(run.folder / "evaluations.json")
    if content["of"] != run.of:
        raise UserError("is that of another run.", where=str(run.folder / "evaluations.json"))
    return content
