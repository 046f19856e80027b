"""What can be wrong with a log: one function per rule, each over whole arrays.

Rules and their limits:

* `non_finite` (error): NaN or Inf in a row that is not marked invalid. `invalid_rows`: marked ones.
* `unordered`, `episode_crossing` (errors): a recorded next state is not the next row of its
  episode, in most rows or in some. Where no next states are recorded, an end that nobody marked
  shows only if the row after it is as far away, and as near to the first states, as after marked
  ends (`episode_crossing`, a warning; at least five marked ends).
* `repeated_steps`: the same observation, action and reward twice in a row.
* `shifted_rewards`: see `icql.data.reward_shift`.
* `timeouts_as_terminals`: many terminals exactly at the episode limit; for an unknown task, at the
  greatest episode length.
* `constant_dimension`, `actions_out_of_bounds`.
* `duplicate_episodes`: equal length, and return and states at eight times that agree within a
  thousandth of a standard deviation. Copies that were cut or continued are not seen.
* `no_transitions` (error): no episode ends, or nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from icql.data.reward_shift import reward_shift
from icql.data.tasks import Task
from icql.data.transitions import Bools, Steps

Rows = NDArray[np.int64]
Severity = Literal["error", "warning"]

FINE = 1e-3  # of a column's standard deviation: what counts as the same number
ROUNDING = 1e-6  # of a column's largest number
COMPARED = 2_000  # rows at most that are compared with the first states
TIMES = 8  # states of an episode by which copies are recognised


@dataclass(frozen=True)
class Log:
    """Steps with what every rule needs to know about them."""

    steps: Steps
    task: Task | None
    ends: Bools  # (T,)
    good: Bools  # (T,) valid and finite
    episode: Rows  # (T,)
    starts: Rows  # (E,) first row of every episode, a last unfinished one included
    last: Rows  # (E,) last row of every episode
    scale: NDArray[np.float64]  # (obs,) standard deviation of the good rows; 1 where it is rounding

    @classmethod
    def of(cls, steps: Steps, task: Task | None) -> Log:
        """Look once at everything."""
        ends = steps.terminals | steps.timeouts
        good = np.isfinite(steps.observations).all(1) & np.isfinite(steps.actions).all(1)
        good &= np.isfinite(steps.rewards)
        if steps.valid is not None:
            good &= steps.valid
        rows = steps.observations[good]
        spread = rows.std(0, dtype=np.float64) if len(rows) else np.ones(rows.shape[1])
        spread[spread <= ROUNDING * np.abs(rows).max(0, initial=1.0)] = 1.0
        starts = np.flatnonzero(np.append(True, ends[:-1]))
        return cls(
            steps=steps,
            task=task,
            ends=ends,
            good=good,
            episode=(np.cumsum(ends) - ends).astype(np.int64),
            starts=starts,
            last=np.append(starts[1:] - 1, len(steps) - 1),
            scale=spread,
        )

    @property
    def inside(self) -> Rows:
        """Good rows whose next row is good and belongs to the same episode."""
        return np.flatnonzero(~self.ends[:-1] & self.good[:-1] & self.good[1:])


# severity, rule, row, column, message
Found = Iterator[tuple[Severity, str, int | None, str | None, str]]


def _non_finite(log: Log) -> Found:
    for name in ("observations", "actions", "rewards", "next_observations"):
        array = getattr(log.steps, name)
        if array is None:
            continue
        bad = ~np.isfinite(array.reshape(len(array), -1))
        if log.steps.valid is not None:
            bad &= log.steps.valid[:, None]
        rows, columns = np.nonzero(bad)
        if rows.size:
            where = name if array.ndim == 1 else f"{name}[{columns[0]}]"
            yield (
                "error",
                "non_finite",
                int(rows[0]),
                where,
                f"not a finite number here and in {_count(np.unique(rows).size, 'row')} in all. "
                "Repair these rows, or mark them with 0 in `valid` to have them left out.",
            )


def _invalid_rows(log: Log) -> Found:
    if log.steps.valid is not None and not log.steps.valid.all():
        invalid = np.flatnonzero(~log.steps.valid)
        yield (
            "warning",
            "invalid_rows",
            int(invalid[0]),
            "valid",
            f"{invalid.size:,} of {len(log.steps):,} rows are marked invalid and are left out, and "
            "so is a row whose successor is one of them: fewer transitions, nothing else.",
        )


def _successors(log: Log) -> Found:
    """Recorded next states against the next row; without them, ends that nobody marked."""
    following = log.steps.next_observations
    if following is None:
        yield from _unmarked_ends(log)
        return
    observations, inside = log.steps.observations, log.inside
    off = np.abs(following[inside] - observations[inside + 1].astype(np.float64))
    off = off > FINE * log.scale
    wrong = inside[off.any(axis=1)]
    column = "next_observations"
    if wrong.size > len(inside) / 2:
        yield (
            "error",
            "unordered",
            int(wrong[0]),
            column,
            f"the next observation is not row {wrong[0] + 1}, and so in {wrong.size:,} of "
            f"{len(inside):,} rows: the steps are not in time order. Sort them by episode and "
            "time.",
        )
    elif wrong.size:
        yield (
            "error",
            "episode_crossing",
            int(wrong[0]),
            column,
            f"the next observation is not row {wrong[0] + 1}, yet no episode ends here "
            f"({_count(wrong.size, 'such row')}): the next action would be another episode's. "
            "Mark the ends of episodes in `terminals` or `timeouts`.",
        )
    final = np.flatnonzero(log.ends[:-1] & log.good[:-1] & log.good[1:])
    crossing = final[(following[final] == observations[final + 1]).all(axis=1)]
    if crossing.size > max(1, len(final) / 2):
        yield (
            "warning",
            "episode_crossing",
            int(crossing[0]),
            column,
            f"at {crossing.size:,} of {len(final):,} episode ends the next observation is the "
            "first one of the next episode: the environment was reset before it was logged. "
            "Nothing is bootstrapped across an end, but the state after it is lost.",
        )


def _unmarked_ends(log: Log) -> Found:
    """Steps inside an episode as long as those across marked ends, to what looks like a start."""
    observations = log.steps.observations.astype(np.float64) / log.scale
    first = observations[log.starts[log.good[log.starts]]][:COMPARED]
    ends = np.flatnonzero(log.ends[:-1] & log.good[:-1] & log.good[1:])
    inside = log.inside
    if len(ends) < 5 or not inside.size:
        return
    moved = np.linalg.norm(observations[inside + 1] - observations[inside], axis=1)
    across = np.linalg.norm(observations[ends + 1] - observations[ends], axis=1)
    jump = np.percentile(across, 10)
    if jump <= np.percentile(moved, 99):  # steps across ends do not stand out here
        return
    longest = np.argsort(-moved, kind="stable")[:COMPARED]
    longest = np.sort(inside[longest[moved[longest] >= jump]])
    # A first state is as near to another one as first states are among themselves.
    among = _distances(first, first)
    np.fill_diagonal(among, np.inf)
    near = _distances(observations[longest + 1], first).min(axis=1, initial=np.inf)
    likely = longest[near <= np.percentile(among.min(axis=1), 90)]
    if likely.size:
        yield (
            "warning",
            "episode_crossing",
            int(likely[0]),
            "timeouts",
            f"row {likely[0] + 1} looks like the first state of an episode, yet none ends here "
            f"({_count(likely.size, 'such row')}): values would be carried across. Mark the ends "
            "of episodes in `terminals` or `timeouts`.",
        )


def _repeated_steps(log: Log) -> Found:
    steps, rows = log.steps, log.inside
    for array in (steps.rewards[:, None], steps.actions, steps.observations):
        rows = rows[(array[rows] == array[rows + 1]).all(axis=1)]
    if rows.size:
        yield (
            "warning",
            "repeated_steps",
            int(rows[0] + 1),
            None,
            f"the same observation, action and reward as in row {rows[0]} "
            f"({_count(rows.size, 'such row')}): a step that was logged twice pays its reward "
            "twice and leads to itself. Remove the copies.",
        )


def _shifted_rewards(log: Log) -> Found:
    shift = reward_shift(log.steps, log.ends, log.good, log.task)
    if shift is not None:
        late = shift.lag > 0
        yield (
            "error" if shift.certain else "warning",
            "shifted_rewards",
            int(log.starts[0]),
            "rewards",
            f"the rewards stand one row too {'early' if not late else 'late'}: {shift.evidence}. "
            "Every action would be credited with its neighbour's reward. Move them by one row "
            f"{'up' if late else 'down'} within each episode.",
        )


def _timeouts_as_terminals(log: Log) -> Found:
    ended = log.ends[log.last]
    length = (log.last - log.starts + 1)[ended]
    terminal = log.steps.terminals[log.last[ended]]
    if not terminal.any():
        return
    if log.task is not None:
        limit, share, what = log.task.max_episode_steps, 0.02, "the task's limit"
    else:
        limit, share, what = int(length.max()), 0.2, "the greatest length"
    cut = terminal & (length == limit)
    if cut.sum() >= max(3, share * terminal.sum()):
        yield (
            "warning",
            "timeouts_as_terminals",
            int(log.last[ended][cut][0]),
            "terminals",
            f"{cut.sum():,} of {terminal.sum():,} terminal episodes end at step {limit:,}, {what}: "
            "they look cut off, not finished. A terminal says that nothing follows, so values "
            "near it would be too low. Mark such ends in `timeouts` instead.",
        )


def _constant_dimensions(log: Log) -> Found:
    consequences = {
        "observations": "They do not help to tell states apart, and a policy that meets another "
        "value there has never seen it.",
        "actions": "No policy can learn what another value there would do.",
    }
    for name, consequence in consequences.items():
        rows = getattr(log.steps, name)[log.good]
        constant = np.flatnonzero((rows == rows[:1]).all(axis=0))
        if len(rows) > 1 and constant.size:
            yield (
                "warning",
                "constant_dimension",
                None,
                f"{name}[{_ranges(constant)}]",
                f"{constant.size} of {rows.shape[1]} columns never change. {consequence}",
            )


def _actions_out_of_bounds(log: Log) -> Found:
    beyond = np.abs(log.steps.actions) > 1
    rows = np.flatnonzero(beyond.any(axis=1) & log.good)
    if not rows.size or (log.task is not None and not log.task.unit_actions):
        return
    consequence = (
        "Policies act in [-1, 1]: scale the actions to that range."
        if log.task is None
        else "They are clipped, so the logged effect belongs to another action."
    )
    column = int(np.flatnonzero(beyond[rows[0]])[0])
    yield (
        "warning",
        "actions_out_of_bounds",
        int(rows[0]),
        f"actions[{column}]",
        f"{log.steps.actions[rows[0], column]:g} lies beyond ±1, and so do actions in "
        f"{_count(rows.size, 'row')} in all. {consequence}",
    )


def _duplicate_episodes(log: Log) -> Found:
    length = log.last - log.starts + 1
    whole = np.add.reduceat(log.good, log.starts, dtype=int) == length
    whole &= log.ends[log.last] & (length > 1)
    starts, length = log.starts[whole], length[whole]
    if len(starts) < 2:
        return
    returns = np.add.reduceat(np.where(log.good, log.steps.rewards, 0), log.starts, dtype=float)
    times = starts[:, None] + np.rint(np.linspace(0, 1, TIMES) * (length[:, None] - 1)).astype(int)
    states = (log.steps.observations[times] / log.scale).reshape(len(starts), -1)
    gains = returns[whole, None] / (returns[whole].std() or 1.0)
    prints = np.concatenate([states, gains], axis=1)
    # Copies agree in any mixture of their numbers, so sorting by one puts them side by side.
    mixture = prints @ np.random.default_rng(0).normal(size=prints.shape[1])
    order = np.lexsort((mixture, length))
    alike = (np.abs(np.diff(prints[order], axis=0)) <= FINE).all(axis=1)
    alike &= np.diff(length[order]) == 0
    pairs = np.sort(np.stack([order[:-1][alike], order[1:][alike]], axis=1), axis=1)
    if len(pairs):
        original, copy = starts[pairs[pairs[:, 1].argmin()]]
        yield (
            "warning",
            "duplicate_episodes",
            int(copy),
            None,
            f"the episode that starts here is a copy of the one at row {original} "
            f"({len(pairs):,} of {len(starts):,} episodes are copies): they count twice in "
            "training, and neighbours that are copies make the data look denser than it is.",
        )


RULES: tuple[Callable[[Log], Found], ...] = (
    _non_finite,
    _invalid_rows,
    _successors,
    _repeated_steps,
    _shifted_rewards,
    _timeouts_as_terminals,
    _constant_dimensions,
    _actions_out_of_bounds,
    _duplicate_episodes,
)


def _distances(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    squared = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return np.sqrt(np.maximum(squared, 0))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _ranges(columns: Rows) -> str:
    """Column numbers as people write them: `3, 12, 30–59`."""
    runs = np.split(columns, np.flatnonzero(np.diff(columns) > 1) + 1)
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}–{r[-1]}" for r in runs)
