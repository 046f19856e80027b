"""What can be wrong with a log: one function per rule, each over whole arrays, block by block.

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
* `discrete_actions` (error): whole numbers only, some beyond ±1, or one-hot rows only.
* `constant_dimension`, `actions_out_of_bounds`.
* `duplicate_episodes`: equal length, and return and states at eight times that agree within a
  thousandth of a standard deviation. Copies that were cut or continued are not seen.
* `no_transitions` (error): no episode ends, or nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from icql.data.blocks import Rows, blocks, groups, pick, tally
from icql.data.log import Log
from icql.data.reward_shift import reward_shift
from icql.data.transitions import Bools, Floats

Severity = Literal["error", "warning"]

FINE = 1e-3  # of a column's standard deviation: what counts as the same number
COMPARED = 2_000  # rows at most that are compared with the first states
MOVED = 100_000  # rows at most that say how far a step goes
TIMES = 8  # states of an episode by which copies are recognised


# severity, rule, row, column, message
Found = Iterator[tuple[Severity, str, int | None, str | None, str]]


def _non_finite(log: Log) -> Found:
    valid = log.steps.valid
    for name in ("observations", "actions", "rewards", "next_observations"):
        array = getattr(log.steps, name)
        if array is None:
            continue

        def bad(rows: slice, array: Floats = array) -> Bools:
            fine = np.isfinite(array[rows]).reshape(rows.stop - rows.start, -1).all(axis=1)
            return np.logical_not(fine) if valid is None else np.logical_not(fine) & valid[rows]

        row, count = tally(len(array), bad, width=array[:1].size)
        if row is not None:
            column = int(np.isfinite(array[row]).argmin())
            yield (
                "error",
                "non_finite",
                row,
                name if array.ndim == 1 else f"{name}[{column}]",
                f"not a finite number here and in {_count(count, 'row')} in all. "
                "Repair these rows, or mark them with 0 in `valid` to have them left out.",
            )


def _invalid_rows(log: Log) -> Found:
    if log.steps.valid is not None and not log.steps.valid.all():
        invalid = int((~log.steps.valid).sum())
        yield (
            "warning",
            "invalid_rows",
            int(log.steps.valid.argmin()),
            "valid",
            f"{invalid:,} of {len(log.steps):,} rows are marked invalid and are left out, and "
            "so is a row whose successor is one of them: fewer transitions, nothing else.",
        )


def _successors(log: Log) -> Found:
    """Recorded next states against the next row; without them, ends that nobody marked."""
    following = log.steps.next_observations
    if following is None:
        yield from _unmarked_ends(log)
        return
    observations = log.steps.observations

    def off(rows: slice) -> Bools:
        after = observations[rows.start + 1 : rows.stop + 1].astype(np.float64)
        return np.any(np.abs(following[rows] - after) > FINE * log.scale, axis=1)

    wrong, count = log.pairs(off)
    column, inside = "next_observations", log.pairs()[1]
    if wrong is not None and count > inside / 2:
        yield (
            "error",
            "unordered",
            wrong,
            column,
            f"the next observation is not row {wrong + 1}, and so in {count:,} of "
            f"{inside:,} rows: the steps are not in time order. Sort them by episode and "
            "time.",
        )
    elif wrong is not None:
        yield (
            "error",
            "episode_crossing",
            wrong,
            column,
            f"the next observation is not row {wrong + 1}, yet no episode ends here "
            f"({_count(count, 'such row')}): the next action would be another episode's. "
            "Mark the ends of episodes in `terminals` or `timeouts`.",
        )
    crossing, count = log.pairs(lambda rows: _same(following, observations, rows), across=True)
    final = log.pairs(across=True)[1]
    if crossing is not None and count > max(1, final / 2):
        yield (
            "warning",
            "episode_crossing",
            crossing,
            column,
            f"at {count:,} of {final:,} episode ends the next observation is the "
            "first one of the next episode: the environment was reset before it was logged. "
            "Nothing is bootstrapped across an end, but the state after it is lost.",
        )


def _unmarked_ends(log: Log) -> Found:
    """Steps inside an episode as long as those across marked ends, to what looks like a start."""
    rows = len(log.steps) - 1
    ends = pick(rows, lambda r: log.pair(r, across=True), MOVED)
    inside = pick(rows, log.pair, MOVED)
    if len(ends) < 5 or not inside.size:
        return
    jump = np.percentile(_moved(log, ends), 10)
    if jump <= np.percentile(_moved(log, inside), 99):  # steps across ends do not stand out here
        return
    longest, far = np.empty(0, np.int64), np.empty(0)
    for block in blocks(rows, log.steps.observations.shape[1]):
        here = block.start + np.flatnonzero(log.pair(block))
        moved = _moved(log, here)
        longest = np.append(longest, here[moved >= jump])
        far = np.append(far, moved[moved >= jump])
        order = np.argsort(-far, kind="stable")[:COMPARED]
        longest, far = longest[order], far[order]
    longest = np.sort(longest)
    # A first state is as near to another one as first states are among themselves.
    first = _scaled(log, log.starts[log.good[log.starts]][:COMPARED])
    among = _nearest(first, first, apart=True)
    near = _nearest(_scaled(log, longest + 1), first)
    likely = longest[near <= np.percentile(among, 90)]
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
    steps = log.steps

    def same(rows: slice) -> Bools:
        arrays = (steps.rewards[:, None], steps.actions, steps.observations)
        return np.logical_and.reduce([_same(array, array, rows) for array in arrays])

    row, count = log.pairs(same)
    if row is not None:
        yield (
            "warning",
            "repeated_steps",
            row + 1,
            None,
            f"the same observation, action and reward as in row {row} "
            f"({_count(count, 'such row')}): a step that was logged twice pays its reward "
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
    if log.good.sum() < 2:
        return
    for name, consequence in consequences.items():
        array = getattr(log.steps, name)
        first, same = array[log.good.argmax()], np.ones(array.shape[1], np.bool_)
        for block in blocks(*array.shape):
            same &= (array[block][log.good[block]] == first).all(axis=0)
        constant = np.flatnonzero(same)
        if constant.size:
            yield (
                "warning",
                "constant_dimension",
                None,
                f"{name}[{_ranges(constant)}]",
                f"{constant.size} of {len(same)} columns never change. {consequence}",
            )


def _discrete_actions(log: Log) -> Found:
    actions = log.steps.actions
    width = actions.shape[1]

    def first(test: Callable[[Floats], Any]) -> int | None:
        rows = len(actions)
        return tally(rows, lambda part: test(actions[part]) & log.good[part], width=width)[0]

    if not log.good.any() or first(lambda a: (a != np.rint(a)).any(axis=1)) is not None:
        return
    row = first(lambda a: (np.abs(a) > 1).any(axis=1))
    one_hot = width > 1 and first(lambda a: (a < 0).any(axis=1) | (a.sum(axis=1) != 1)) is None
    if row is None and not one_hot:  # whole numbers within ±1 may be a controller of full thrust
        return
    how = "are one-hot" if row is None else f"are whole numbers such as {actions[row].max():g}"
    yield (
        "error",
        "discrete_actions",
        row,
        "actions",
        f"all actions {how}: this is a discrete action space, and every method here learns "
        "continuous actions in [-1, 1].",
    )


def _actions_out_of_bounds(log: Log) -> Found:
    actions = log.steps.actions
    row, count = tally(
        len(actions),
        lambda rows: (np.abs(actions[rows]) > 1).any(axis=1) & log.good[rows],
        width=actions.shape[1],
    )
    if row is None or (log.task is not None and not log.task.unit_actions):
        return
    consequence = (
        "Policies act in [-1, 1]: scale the actions to that range."
        if log.task is None
        else "They are clipped, so the logged effect belongs to another action."
    )
    column = int((np.abs(actions[row]) > 1).argmax())
    yield (
        "warning",
        "actions_out_of_bounds",
        row,
        f"actions[{column}]",
        f"{actions[row, column]:g} lies beyond ±1, and so do actions in "
        f"{_count(count, 'row')} in all. {consequence}",
    )


def _duplicate_episodes(log: Log) -> Found:
    length = log.last - log.starts + 1
    whole, returns = np.empty(len(length), np.bool_), np.empty(len(length))
    for group in groups(log.starts):
        starts = log.starts[group] - log.starts[group.start]
        rows = slice(log.starts[group.start], log.last[group.stop - 1] + 1)
        good = log.good[rows]
        whole[group] = np.add.reduceat(good, starts, dtype=int) == length[group]
        gained = np.where(good, log.steps.rewards[rows], 0)
        returns[group] = np.add.reduceat(gained, starts, dtype=float)
    whole &= log.ends[log.last] & (length > 1)
    starts, length, returns = log.starts[whole], length[whole], returns[whole]
    if len(starts) < 2:
        return
    times, spread = np.linspace(0, 1, TIMES), returns.std() or 1.0

    def prints(episodes: slice | Rows) -> NDArray[np.float64]:
        rows = starts[episodes, None] + np.rint(times * (length[episodes, None] - 1)).astype(int)
        states = _scaled(log, rows).reshape(len(rows), -1)
        return np.concatenate([states, returns[episodes, None] / spread], axis=1)

    width = TIMES * log.steps.observations.shape[1] + 1
    weights = np.random.default_rng(0).normal(size=width)
    # Copies agree in any mixture of their numbers, so sorting by one puts them side by side.
    mixture = np.concatenate([prints(part) @ weights for part in blocks(len(starts), width)])
    order = np.lexsort((mixture, length))
    alike = np.diff(length[order]) == 0
    for part in blocks(len(alike), width):
        beside = prints(order[part.start : part.stop + 1])
        alike[part] &= (np.abs(np.diff(beside, axis=0)) <= FINE).all(axis=1)
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
    _discrete_actions,
    _actions_out_of_bounds,
    _duplicate_episodes,
)


def _same(array: Floats, other: Floats, rows: slice) -> Bools:
    """Whether each of these rows of `array` equals the next row of `other`."""
    same: Bools = (array[rows] == other[rows.start + 1 : rows.stop + 1]).all(axis=1)
    return same


def _scaled(log: Log, rows: Rows) -> NDArray[np.float64]:
    """Observations of these rows in units of their standard deviation."""
    return log.steps.observations[rows].astype(np.float64) / log.scale


def _moved(log: Log, rows: Rows) -> NDArray[np.float64]:
    """How far the state moves from each of these rows to the next."""
    moved = np.empty(len(rows))
    for part in blocks(len(rows), log.steps.observations.shape[1]):
        step = _scaled(log, rows[part] + 1) - _scaled(log, rows[part])
        moved[part] = np.linalg.norm(step, axis=1)
    return moved


def _nearest(
    a: NDArray[np.float64], b: NDArray[np.float64], *, apart: bool = False
) -> NDArray[np.float64]:
    """Distance of each row of `a` to the nearest of `b`; `apart`: not to the row of its number."""
    nearest = np.empty(len(a))
    for part in blocks(len(a), len(b)):
        squared = (a[part] ** 2).sum(1)[:, None] + (b**2).sum(1) - 2 * a[part] @ b.T
        if apart:
            squared[np.arange(len(squared)), np.arange(part.start, part.stop)] = np.inf
        nearest[part] = np.sqrt(np.maximum(squared.min(axis=1, initial=np.inf), 0))
    return nearest


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _ranges(columns: Rows) -> str:
    """Column numbers as people write them: `3, 12, 30–59`."""
    runs = np.split(columns, np.flatnonzero(np.diff(columns) > 1) + 1)
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}–{r[-1]}" for r in runs)
