"""Do rows stand where they belong: successors, ends of episodes, copies of steps, rewards.

Recorded next states are compared with the next row. Where none are recorded, an end that nobody
marked shows only if the row after it is as far away, and as near to the first states, as after
marked ends (at least five).

Are the rewards one row off? Told from the data alone, where it can be. Kitchen: the logged reward
is the number of tasks whose element is within 0.3 of its goal in the same row's observation, so it
is computed anew and compared. Elsewhere: a reward that belongs to (s, a, s') is explained best by
them. A linear model of s, a, a² and s' is fitted to the reward of the same row, of the row before
and of the row after. Only if a neighbouring row's reward leaves less than a quarter unexplained of
what its own leaves, and less than a tenth of the variance, the rewards count as shifted. MuJoCo's
forward rewards are told apart this way; rewards that vary slowly or depend on s alone (r = f(s) one
row early is r = f(s') of the row before), sparse rewards and small logs are not, and nothing is
said about them.
"""

from __future__ import annotations

import numpy as np

from icql.data.arrays import Bools, Doubles, Floats, Rows, Test, blocks, pick
from icql.data.faults import Severity
from icql.data.transitions import Steps
from icql.data.validation.findings import Examined, Found, counted

FINE = 1e-3  # of a column's standard deviation: what counts as the same number
COMPARED = 2_000  # rows at most that are compared with the first states
MOVED = 100_000  # rows at most that say how far a step goes

# Columns of D4RL's 60-d state and their goals, for the tasks of the kitchen datasets.
KITCHEN: dict[str, tuple[slice, tuple[float, ...]]] = {
    "bottom burner": (slice(11, 13), (-0.88, -0.01)),
    "top burner": (slice(15, 17), (-0.92, -0.01)),
    "light switch": (slice(17, 19), (-0.69, -0.05)),
    "slide cabinet": (slice(19, 20), (0.37,)),
    "hinge cabinet": (slice(20, 22), (0.0, 1.45)),
    "microwave": (slice(22, 23), (-0.75,)),
    "kettle": (slice(23, 30), (-0.23, 0.75, 1.62, 0.99, 0.0, 0.0, -0.06)),
}
KITCHEN_WIDTH = 60
DONE = 0.3  # an element this near to its goal counts as done
FITTED = 20_000  # rows at most that the linear model is fitted to
PER_FEATURE = 5  # rows that it needs for each of its features
UNEXPLAINED = 0.1
TIMES_BETTER = 4.0
LAGS = (0, 1, -1)

Shift = tuple[int, str]  # rewards stand 1 row after (+1) or before (-1) their step; the evidence


def successors(log: Examined) -> Found:
    """Recorded next states against the next row; without them, ends that nobody marked."""
    following, observations = log.steps.next_observations, log.steps.observations
    if following is None:
        yield from _unmarked_ends(log)
        return

    def off(rows: slice) -> Bools:
        after = observations[rows.start + 1 : rows.stop + 1].astype(np.float64)
        return np.any(np.abs(following[rows] - after) > FINE * log.scale, axis=1)

    wrong, count = log.pairs(off)
    column, inside = "next_observations", log.pairs()[1]
    if wrong is not None and count > inside / 2:
        message = (
            f"the next observation is not row {wrong + 1}, and so in {count:,} of {inside:,} rows: "
            "the steps are not in time order. Sort them by episode and time."
        )
        yield "error", "unordered", wrong, column, message
    elif wrong is not None:
        message = (
            f"the next observation is not row {wrong + 1}, yet no episode ends here "
            f"({counted(count, 'such row')}): the next action would be another episode's. "
            "Mark the ends of episodes in `terminals` or `timeouts`."
        )
        yield "error", "episode_crossing", wrong, column, message
    crossing, count = log.pairs(lambda rows: _same(following, observations, rows), across=True)
    final = log.pairs(across=True)[1]
    if crossing is not None and count > max(1, final / 2):
        message = (
            f"at {count:,} of {final:,} episode ends the next observation is the first one of the "
            "next episode: the environment was reset before it was logged. Nothing is "
            "bootstrapped across an end, but the state after it is lost."
        )
        yield "warning", "episode_crossing", crossing, column, message


def _unmarked_ends(log: Examined) -> Found:
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
    first = log.scaled(log.starts[log.good[log.starts]][:COMPARED])
    among = _nearest(first, first, apart=True)
    near = _nearest(log.scaled(longest + 1), first)
    likely = longest[near <= np.percentile(among, 90)]
    if likely.size:
        message = (
            f"row {likely[0] + 1} looks like the first state of an episode, yet none ends here "
            f"({counted(likely.size, 'such row')}): values would be carried across. Mark the ends "
            "of episodes in `terminals` or `timeouts`."
        )
        yield "warning", "episode_crossing", int(likely[0]), "timeouts", message


def repeated_steps(log: Examined) -> Found:
    """The same observation, action and reward twice in a row."""
    steps = log.steps

    def same(rows: slice) -> Bools:
        arrays = (steps.rewards[:, None], steps.actions, steps.observations)
        return np.logical_and.reduce([_same(array, array, rows) for array in arrays])

    row, count = log.pairs(same)
    if row is not None:
        message = (
            f"the same observation, action and reward as in row {row} "
            f"({counted(count, 'such row')}): a step that was logged twice pays its reward "
            "twice and leads to itself. Remove the copies."
        )
        yield "warning", "repeated_steps", row + 1, None, message


def shifted_rewards(log: Examined) -> Found:
    """Rewards one row too early or too late: an error where the task's own reward shows it."""

    def middle(rows: slice) -> Bools:
        """Rows t + 1 with t, t + 1 and t + 2 good and in one episode, for t in `rows`."""
        joined = log.good[rows.start : rows.stop + 2]
        joined = joined[:-1] & joined[1:] & ~log.ends[rows.start : rows.stop + 1]
        return joined[:-1] & joined[1:]

    kitchen = log.task is not None and log.task.domain == "kitchen"
    if log.task is not None and kitchen:
        shift = _kitchen(log.steps, middle, log.task.kitchen_tasks)
    else:
        shift = _linear(log.steps, pick(len(log.steps) - 2, middle, FITTED) + 1)
    if shift is not None:
        late, evidence = shift[0] > 0, shift[1]
        message = (
            f"the rewards stand one row too {'late' if late else 'early'}: {evidence}. "
            "Every action would be credited with its neighbour's reward. Move them by one row "
            f"{'up' if late else 'down'} within each episode."
        )
        severity: Severity = "error" if kitchen else "warning"
        yield severity, "shifted_rewards", int(log.starts[0]), "rewards", message


def _kitchen(steps: Steps, middle: Test, tasks: tuple[str, ...]) -> Shift | None:
    if steps.observations.shape[1] != KITCHEN_WIDTH or not KITCHEN.keys() >= {*tasks}:
        return None
    count, hits = 0, dict.fromkeys(LAGS, 0)
    for block in blocks(len(steps) - 2, KITCHEN_WIDTH):
        rows = block.start + 1 + np.flatnonzero(middle(block))
        observations, done = steps.observations[rows], np.zeros(len(rows), np.int64)
        for columns, goal in (KITCHEN[name] for name in tasks):
            done += np.linalg.norm(observations[:, columns] - np.asarray(goal), axis=1) < DONE
        count += len(rows)
        for lag in hits:
            hits[lag] += int((steps.rewards[rows + lag] == done).sum())
    if not count:
        return None
    agree = {lag: hit / count for lag, hit in hits.items()}
    lag = max(agree, key=lambda k: agree[k])
    if lag == 0 or agree[lag] < 0.99:
        return None
    return lag, (
        "the tasks done, computed from the observations, agree with the reward of the row "
        f"{_beside(lag)} in {agree[lag]:.1%} of rows and with that of the same row in "
        f"{agree[0]:.1%}"
    )


def _linear(steps: Steps, rows: Rows) -> Shift | None:
    width = 2 * (steps.observations.shape[1] + steps.actions.shape[1])
    if len(rows) < PER_FEATURE * width:  # no rows at all among them
        return None
    rewards = np.stack([steps.rewards[rows + lag].astype(np.float64) for lag in LAGS], axis=1)
    rewards -= rewards.mean(0)
    totals = (rewards**2).sum(0)
    if not totals.all():
        return None

    def features(part: slice) -> Doubles:
        at = rows[part]
        actions = steps.actions[at].astype(np.float64)
        s, following = steps.observations[at], steps.observations[at + 1]
        return np.concatenate([s, actions, actions**2, following], axis=1)

    parts = list(blocks(len(rows), width))
    mean = np.sum([features(part).sum(0) for part in parts], axis=0) / len(rows)
    spread = np.sum([((features(part) - mean) ** 2).sum(0) for part in parts], axis=0)
    scale = np.where(spread > 0, np.sqrt(spread / len(rows)), 1)
    gram, cross = np.zeros((width, width)), np.zeros((width, len(LAGS)))
    for part in parts:
        x = (features(part) - mean) / scale
        gram += x.T @ x
        cross += x.T @ rewards[part]
    power, axes = np.linalg.eigh(gram)
    used = power > 1e-10 * max(power[-1], 1.0)
    onto = (axes[:, used] / np.sqrt(power[used])).T @ cross  # along orthonormal directions
    explained = (onto**2).sum(0) / totals
    left = {lag: max(1 - float(e), 1e-12) for lag, e in zip(LAGS, explained, strict=True)}
    lag = min(left, key=lambda k: left[k])
    if lag == 0 or left[lag] > UNEXPLAINED or left[0] < TIMES_BETTER * left[lag]:
        return None
    return lag, (
        f"state, action and next state leave {left[lag]:.2%} of the reward of the row "
        f"{_beside(lag)} unexplained, and {left[0]:.2%} of that of the same row"
    )


def _beside(lag: int) -> str:
    return "after" if lag > 0 else "before"


def _same(array: Floats, other: Floats, rows: slice) -> Bools:
    """Whether each of these rows of `array` equals the next row of `other`."""
    same: Bools = (array[rows] == other[rows.start + 1 : rows.stop + 1]).all(axis=1)
    return same


def _moved(log: Examined, rows: Rows) -> Doubles:
    """How far the state moves from each of these rows to the next."""
    moved = np.empty(len(rows))
    for part in blocks(len(rows), log.steps.observations.shape[1]):
        step = log.scaled(rows[part] + 1) - log.scaled(rows[part])
        moved[part] = np.linalg.norm(step, axis=1)
    return moved


def _nearest(a: Doubles, b: Doubles, *, apart: bool = False) -> Doubles:
    """Distance of each row of `a` to the nearest of `b`; `apart`: not to the row of its number."""
    nearest = np.empty(len(a))
    for part in blocks(len(a), len(b)):
        squared = (a[part] ** 2).sum(1)[:, None] + (b**2).sum(1) - 2 * a[part] @ b.T
        if apart:
            squared[np.arange(len(squared)), np.arange(part.start, part.stop)] = np.inf
        nearest[part] = np.sqrt(np.maximum(squared.min(axis=1, initial=np.inf), 0))
    return nearest
