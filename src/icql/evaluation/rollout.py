"""Policies play episodes, many at a time, with one batched policy call per step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import NDArray

from icql.data.signals import Signals
from icql.data.tasks import Task
from icql.errors import UserError
from icql.evaluation.env_processes import EnvProcess, ProcessEnv, cores
from icql.evaluation.environments import Env, make_env

Act: TypeAlias = Callable[[NDArray[np.float32]], Any]  # (rows, obs) → (rows, act), array-like
Seen: TypeAlias = NDArray[np.float32]
Progress: TypeAlias = Callable[[int, int], None]  # (policy calls so far, episodes finished)

PARALLEL = 20  # a FrankaKitchen environment holds 100 MB; more rows no longer save time
DONE = -1  # the row has no episode left


@dataclass(frozen=True)
class Player:
    """Acts with memory of its episodes; see `icql.nn.policies.MemoryPolicy`."""

    start: Callable[[int], Any]  # rows → what is carried into the first step
    # what was carried, observations, previous rewards, whether fresh → actions, what is carried on
    step: Callable[[Any, Seen, Seen, NDArray[np.bool_]], tuple[Any, Any]]
    rowwise: bool = False  # asked for some rows alone, it would do the same in these


@dataclass(frozen=True)
class Rollouts:
    """What happened in each episode, in the order policy by policy, episode by episode."""

    returns: NDArray[np.float64]  # (policies · episodes,) undiscounted
    lengths: NDArray[np.int64]  # (policies · episodes,)
    terminated: NDArray[np.bool_]  # (policies · episodes,) False: the episode reached its limit
    seconds: float  # wall-clock time of all of them together, building environments included

    def __len__(self) -> int:
        return len(self.returns)

    def normalized(self, task: Task) -> NDArray[np.float64]:
        """D4RL's normalised score of each episode: 100·(R − min)/(max − min)."""
        return task.normalized_score(self.returns)

    def split(self, policies: int) -> tuple[Rollouts, ...]:
        """One `Rollouts` per policy, for a rollout that was given `policies` seeds."""
        columns = (self.returns, self.lengths, self.terminated)
        parts = zip(*(np.split(column, policies) for column in columns), strict=True)
        return tuple(Rollouts(r, n, end, self.seconds) for r, n, end in parts)


class EnvPool(ExitStack[None]):
    """Environments of one kind, kept alive between evaluations because some are slow to build.

    `close` closes them all; the pool is empty afterwards and can be used again.

    Args:
        source: a task, or a function that builds one environment with flat Box spaces.
        signals: of the data that policies learned from: what their -1 and 1 stand for in the
            environment of a task.
        processes: that environments of a task are spread over, 0 for this one alone; None takes
            what pays. The result is the same.
    """

    def __init__(
        self,
        source: Task | Callable[[], Env],
        signals: Signals | None = None,
        processes: int | None = None,
    ) -> None:
        super().__init__()
        self._source, self._signals = source, signals
        self._envs: list[Any] = []  # environments, of our own or `ProcessEnv`s
        self._processes: list[EnvProcess] = []
        self.processes = _paying(source) if processes is None else processes
        if self.processes and not isinstance(source, Task):
            raise UserError("is for tasks alone.", where="processes", fix="Give 0.")
        # Threads pay where a step stays long in the simulator, which releases the GIL: with two,
        # Kitchen runs 1.9 times as fast, Adroit 1.1 times, and the MuJoCo tasks 0.8 times.
        slow = isinstance(source, Task) and source.domain == "kitchen"
        self.default_workers = cores() if slow and not self.processes else 1

    def take(self, count: int) -> list[Env]:
        """The first `count` environments, built where they do not exist yet."""
        if any(process.waiting for process in self._processes):
            self._end()  # an error or Ctrl-C left answers that nobody waits for
        if not self._envs:  # also after `close`
            self.callback(self._end)
        if self.processes:
            begun = [self._begin(number) for number in range(len(self._envs), count)]
            self._envs += [env.finish() for env in begun]  # built side by side
        while len(self._envs) < count:
            self._envs.append(self._make())
        return self._envs[:count]

    def begin_steps(self, rows: Iterable[int], actions: NDArray[np.float32]) -> None:
        """Have all processes step at once; `step` of each environment then waits for its answer."""
        if self.processes:
            for row in rows:
                self._envs[row].post_step(actions[row])
            for process in self._processes:
                process.send()

    def begin_resets(self, seeds: Mapping[int, int]) -> None:
        """Have the environments of these rows begin an episode; `reset` of each then waits."""
        if self.processes:
            for row, seed in seeds.items():
                self._envs[row].post_reset(seed)

    def turns(self, count: int) -> list[Sequence[int]]:
        """Rows that step in turn: while the policy acts for one half, the other one steps.

        Every process has rows of both halves. In this process all rows step at once.
        """
        if count <= self.processes or not self.processes:
            return [range(count)]
        half = np.arange(count) // self.processes % 2
        return [np.flatnonzero(half == which).tolist() for which in (0, 1)]

    def _begin(self, number: int) -> ProcessEnv:
        """Have environment `number` built; rows take turns, so that all processes have as many."""
        assert isinstance(self._source, Task)
        if len(self._processes) < min(number + 1, self.processes):
            self._processes.append(EnvProcess(self._source, self._signals))
        return self._processes[number % self.processes].make(number)

    def _make(self) -> Env:
        if isinstance(self._source, Task):
            return make_env(self._source, self._signals)
        return self._source()

    def _end(self) -> None:
        while self._envs:
            self._envs.pop().close()
        while self._processes:
            self._processes.pop().close()


def _paying(source: Task | Callable[[], Env]) -> int:
    """Processes that pay: where steps are long, and two cores are as well served by threads."""
    heavy = isinstance(source, Task) and source.domain in ("kitchen", "adroit")
    return cores() if heavy and cores() > 2 else 0


def rollout(
    act: Act | Player,
    environment: Task | Callable[[], Env] | EnvPool,
    *,
    episodes: int,
    seed: int | Sequence[int],
    workers: int | None = None,
    parallel: int = PARALLEL,
    progress: Progress | None = None,
) -> Rollouts:
    """Play `episodes` episodes of each policy: return, length and kind of end of every one.

    `act` is called once per step, always with the same shape (rows, obs), so a compiled policy is
    compiled once: a row whose episodes are over keeps its last observation, and its action is
    ignored. Several policies (training seeds) play together: give one seed for each. The rows are
    then policy after policy, so `act` may reshape (rows, obs) to (policies, -1, obs).

    Args:
        act: maps observations (rows, obs) to actions (rows, act), float32; actions are clipped to
            the bounds of the action space. A `Player` is also told the previous rewards and where
            an episode begins, and carries what it likes from step to step.
        environment: the task, a function that builds one environment, or a pool to reuse.
        episodes: how many episodes each policy plays.
        seed: the evaluation seed, or one per policy. Episode i starts from (seed, i), so the
            result is the same alone or together with others, and for every `workers`.
        workers: threads that step the environments; None takes what pays for the task. With
            processes there is nothing for more than one to do.
        parallel: about how many environments to run at once; further episodes follow in the rows
            of those that ended. It limits memory, not the result.
        progress: called after every step with the steps so far and the episodes finished.

    Raises:
        UserError: a setting is out of range, or the policy's actions are not finite or do not fit.
    """
    seeds = [int(s) for s in np.atleast_1d(np.asarray(seed))]
    with ExitStack() as stack:
        if not isinstance(environment, EnvPool):
            environment = stack.enter_context(EnvPool(environment))
        threads = environment.default_workers if workers is None else workers
        _check(episodes=(episodes, 1), seed=(min(seeds, default=-1), 0))
        _check(workers=(threads, 1), parallel=(parallel, 1))
        threads = 1 if environment.processes else threads

        start = time.perf_counter()
        columns = min(episodes, max(1, parallel // len(seeds)))  # rows of each policy
        count = len(seeds) * columns
        batch = _Batch(environment, count, seeds, episodes)
        player = act if isinstance(act, Player) else _memoryless(act)
        carry, steps = player.start(count), 0
        turns: list[Sequence[int]] = [range(count)]
        if player.rowwise and carry is None:
            turns = environment.turns(count)
        threads = min(threads, count)
        executor = stack.enter_context(ThreadPoolExecutor(threads))

        def spread(do: Callable[[Sequence[int]], None], rows: Sequence[int]) -> None:
            if threads == 1:  # needs no thread: handing over costs more than a MuJoCo step
                do(rows)
            else:
                list(executor.map(do, [rows[first::threads] for first in range(threads)]))

        def begin(rows: Sequence[int]) -> None:
            nonlocal carry
            playing = [row for row in rows if batch.playing[row] != DONE]
            if playing:
                seen = (batch.observations.copy(), batch.rewards.copy(), batch.fresh.copy())
                actions, carry = player.step(carry, *seen)
                batch.set_actions(rows, actions)
                environment.begin_steps(playing, batch.actions)

        for rows in turns:
            spread(batch.reset, rows)
            begin(rows)
        while (batch.playing != DONE).any():
            for rows in turns:
                spread(batch.step, rows)
                begin(rows)
            steps += 1
            if progress is not None:
                progress(steps, batch.finished)
        seconds = time.perf_counter() - start
    return Rollouts(batch.returns, batch.lengths, batch.terminated, seconds)


def evaluate_policies(
    policies: Any,
    environments: EnvPool,
    *,
    episodes: int,
    seeds: Sequence[int],
    progress: Progress | None = None,
) -> tuple[Rollouts, ...]:
    """Play `episodes` episodes with each of several stacked policies; one seed for each."""
    count = len(seeds)

    def step(carry: Any, *seen: NDArray[Any]) -> tuple[Any, Any]:
        apart = (jnp.asarray(x.reshape(count, -1, *x.shape[1:])) for x in seen)
        actions, carry = step_all(policies, carry, *apart)
        return np.asarray(actions).reshape(len(seen[0]), -1), carry

    player = Player(lambda rows: start_all(policies, rows // count), step, rowwise=True)
    played = rollout(player, environments, episodes=episodes, seed=list(seeds), progress=progress)
    return played.split(count)


def _memoryless(act: Act) -> Player:
    return Player(lambda rows: None, lambda carry, observations, *_: (act(observations), None))


def episode_seed(seed: int, episode: int) -> int:
    """The seed that episode number `episode` of an evaluation with `seed` resets with."""
    return int(np.random.SeedSequence([seed, episode]).generate_state(1)[0])


@eqx.filter_jit
def act_all(
    policies: Any, observations: Float[Array, "seeds rows obs"]
) -> Float[Array, "seeds rows act"]:
    """Actions of each stacked policy for its own rows of observations, without any history."""
    actions: Array = eqx.filter_vmap(lambda p, s: p(s), in_axes=(eqx.if_array(0), 0))(
        policies, observations
    )
    return actions


@eqx.filter_jit
def start_all(policies: Any, rows: int) -> Any:
    """What each stacked policy carries into the first step of `rows` episodes."""
    return eqx.filter_vmap(lambda p: p.start(rows), in_axes=eqx.if_array(0))(policies)


@eqx.filter_jit
def step_all(
    policies: Any,
    carry: Any,
    observations: Float[Array, "seeds rows obs"],
    rewards: Float[Array, "seeds rows"],
    fresh: Bool[Array, "seeds rows"],
) -> tuple[Float[Array, "seeds rows act"], Any]:
    """Actions of each stacked policy for its own rows, and what it carries on."""
    return eqx.filter_vmap(lambda p, *seen: p.step(*seen), in_axes=(eqx.if_array(0), 0, 0, 0, 0))(
        policies, carry, observations, rewards, fresh
    )


class _Batch:
    """The rows of the policy's batch: an environment each, with the episodes it plays in turn.

    Every method touches only the rows it is given, so threads may share a batch.
    """

    def __init__(self, pool: EnvPool, count: int, seeds: list[int], episodes: int) -> None:
        total, columns = len(seeds) * episodes, count // len(seeds)
        self.pool, self.envs = pool, pool.take(count)
        first: Any = self.envs[0]
        self.returns = np.zeros(total, np.float64)
        self.lengths = np.zeros(total, np.int64)
        self.terminated = np.zeros(total, np.bool_)
        self.playing = np.full(count, DONE)
        self.observations = np.zeros((count, *first.observation_space.shape), np.float32)
        self.actions = np.zeros((count, *first.action_space.shape), np.float32)
        self.rewards = np.zeros(count, np.float32)  # of each row's previous step
        self.fresh = np.zeros(count, np.bool_)  # the row's episode has only begun
        self._over = np.zeros(total, np.bool_)
        self._seeds = [episode_seed(seed, i) for seed in seeds for i in range(episodes)]
        # Which row plays an episode is fixed beforehand, so timing cannot change a result.
        self._queues: list[Iterator[int]] = [
            iter(range(policy * episodes + column, (policy + 1) * episodes, columns))
            for policy in range(len(seeds))
            for column in range(columns)
        ]

    @property
    def finished(self) -> int:
        """How many episodes are over."""
        return int(np.count_nonzero(self._over))

    def reset(self, rows: Sequence[int]) -> None:
        """Begin the next episode of each row."""
        begun: dict[int, int] = {}
        for row in rows:
            episode = self.playing[row] = next(self._queues[row], DONE)
            self.rewards[row], self.fresh[row] = 0, True
            if episode != DONE:
                begun[row] = self._seeds[episode]
        self.pool.begin_resets(begun)
        for row, seed in begun.items():
            self.observations[row], _ = self.envs[row].reset(seed=seed)

    def set_actions(self, rows: Sequence[int], actions: Any) -> None:
        """Take the policy's actions for these rows, clipped to the action space."""
        actions = np.asarray(actions, np.float32)
        if actions.shape != self.actions.shape:
            raise UserError(
                f"the policy's actions have shape {actions.shape}, "
                f"the environment takes {self.actions.shape}.",
                where="evaluation",
                fix="Evaluate in the environment the data came from.",
            )
        bad = ~np.isfinite(actions).all(axis=1) & (self.playing != DONE)
        if bad.any():
            row = int(np.argmax(bad))
            episode = int(self.playing[row])
            seen = "is" if np.isfinite(self.observations[row]).all() else "is not, either"
            raise UserError(
                f"the policy's action is not finite (its observation {seen}).",
                where=f"evaluation, episode {episode}, step {self.lengths[episode] + 1}",
                fix="The training has diverged, or the environment has: see its loss.",
            )
        space: Any = self.envs[0].action_space
        self.actions[rows] = np.clip(actions[rows], space.low, space.high)

    def step(self, rows: Sequence[int]) -> None:
        """Advance each row that still plays; where its episode ends, begin the row's next one."""
        ended = []
        for row in rows:
            episode = self.playing[row]
            if episode == DONE:
                continue
            self.observations[row], reward, terminated, truncated, _ = self.envs[row].step(
                self.actions[row]
            )
            self.rewards[row], self.fresh[row] = float(reward), False
            self.returns[episode] += float(reward)
            self.lengths[episode] += 1
            self.terminated[episode] = terminated
            if terminated or truncated:
                self._over[episode] = True
                ended.append(row)
        self.reset(ended)  # side by side


def _check(**settings: tuple[int, int]) -> None:
    for name, (value, least) in settings.items():
        if value < least:
            raise UserError(f"{value} is too small.", where=name, fix=f"Give at least {least}.")
