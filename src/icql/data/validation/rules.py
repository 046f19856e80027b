"""What can be wrong with a log: one function per rule, each over whole arrays, block by block.

Rules and their limits:

* `non_finite` (error): NaN or Inf in a row that is not marked invalid. `invalid_rows`: marked ones.
* Of tables, what the reader found, of every column: `wrong_cells`, `wrong_type`, `ragged`,
  `levels`, `flags`, `times`, `gaps`, `same_step`, `early_end`, `outside_bounds` (errors);
  `swapped_rows`, `order_unchecked`, and `gaps` that were filled (warnings).
* `unordered`, `episode_crossing`, `repeated_steps`, `shifted_rewards`: see `row_order`.
* `timeouts_as_terminals`: many terminals exactly at the episode limit; for an unknown task, at the
  greatest episode length.
* `discrete_actions` (error): whole numbers only, some beyond ±1, or one-hot rows only.
* `constant_dimension`; `actions_out_of_bounds`, an error but for D4RL's tasks, whose are clipped.
* `scales`: columns of a state that spread a thousand times wider than others.
* `duplicate_episodes`: equal length, and return and states at eight times that agree within a
  thousandth of a standard deviation. Copies that were cut or continued are not seen.
* `no_transitions` (error): no episode ends, or nothing is left.
* `reader`: what the reader had to say.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from icql.data.arrays import (
    IN_MEMORY,
    Doubles,
    Floats,
    Room,
    Rows,
    blocks,
    groups,
    moments,
    not_finite,
    tally,
)
from icql.data.transitions import Source
from icql.data.validation.findings import (
    ROUNDING,
    Examined,
    Finding,
    Findings,
    Found,
    counted,
)
from icql.data.validation.row_order import FINE, repeated_steps, shifted_rewards, successors
from icql.errors import UserError

SCALES = 1_000  # times that one column's spread may be another's
TIMES = 8  # states of an episode by which copies are recognised


def validate(source: Source, room: Room = IN_MEMORY) -> Findings:
    """Look for every known defect in a log; without errors, its transitions are put into `room`.

    Returns:
        One finding per rule and column or array, at the first row that shows it.

    Raises:
        UserError: if the arrays do not fit together.
    """
    file = source.info.source or source.info.name
    errors, warnings = _look(replace(source, steps=source.steps.checked(file)), file)
    if errors:
        return Findings(errors, warnings)
    return Findings(errors, warnings, source.transitions(room))


def _look(source: Source, file: str) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Errors and warnings."""
    log = Examined.of(source)
    found = {"error": list[Finding](), "warning": list[Finding]()}
    for fault in source.faults:
        found[fault.severity].append(Finding.of(fault))
    if not source.faults:  # what it says is among the faults of a table
        texts = source.info.warnings
        found["warning"] = [Finding("reader", file, None, None, text) for text in texts]
    told = bool(found["error"])  # by the reader, with the rows as the file has them
    for rule in RULES[1:] if told else RULES:
        for severity, name, row, column, message in rule(log):
            found[severity].append(Finding(name, file, row, column, message))
    if not found["error"]:
        try:
            log.steps.kept(file)
        except UserError as error:
            message = f"{error.what} {error.fix}".strip()
            found["error"].append(Finding("no_transitions", file, None, None, message))
    return tuple(found["error"]), tuple(found["warning"])


def _non_finite(log: Examined) -> Found:
    for name, array in log.steps.arrays().items():
        if not_finite(array, log.steps.valid)[0] is None:
            continue
        for at in range(array[:1].size):
            values = array if array.ndim == 1 else array[:, at]
            row, _, count = not_finite(values, log.steps.valid)
            if row is not None:
                message = (
                    f"not a finite number here and in {counted(count, 'row')} in all. "
                    "Repair these rows, or mark them with 0 in `valid` to have them left out."
                )
                column = name if array.ndim == 1 else log.name(name, at)
                yield "error", "non_finite", row, column, message


def _invalid_rows(log: Examined) -> Found:
    valid = log.steps.valid
    if valid is not None and not valid.all():
        message = (
            f"{(~valid).sum():,} of {len(valid):,} rows are invalid (marked so, or with gaps) and "
            "are left out, and so is a row whose successor is one of them: fewer transitions, "
            "nothing else."
        )
        yield "warning", "invalid_rows", int(valid.argmin()), "valid", message


def _timeouts_as_terminals(log: Examined) -> Found:
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
        message = (
            f"{cut.sum():,} of {terminal.sum():,} terminal episodes end at step {limit:,}, {what}: "
            "they look cut off, not finished. A terminal says that nothing follows, so values "
            "near it would be too low. Mark such ends in `timeouts` instead."
        )
        row = int(log.last[ended][cut][0])
        yield "warning", "timeouts_as_terminals", row, "terminals", message


def _constant_dimensions(log: Examined) -> Found:
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
        if log.mapping is not None:
            for column in constant.tolist():
                message = f"it is {first[column]:g} in all rows. {consequence}"
                yield "warning", "constant_dimension", None, log.name(name, column), message
        elif constant.size:
            message = f"{constant.size} of {len(same)} columns never change. {consequence}"
            yield "warning", "constant_dimension", None, f"{name}[{_ranges(constant)}]", message


def _discrete_actions(log: Examined) -> Found:
    actions = log.steps.actions
    width = actions.shape[1]
    if log.signals.choices:
        return

    def first(test: Callable[[Floats], Any]) -> int | None:
        rows = len(actions)
        return tally(rows, lambda part: test(actions[part]) & log.acted(part), width=width)[0]

    if first(lambda a: np.isfinite(a).all(axis=1)) is None:
        return
    if first(lambda a: (a != np.rint(a)).any(axis=1)) is not None:
        return
    row = first(lambda a: (np.abs(a) > 1).any(axis=1))
    one_hot = width > 1 and first(lambda a: (a < 0).any(axis=1) | (a.sum(axis=1) != 1)) is None
    if row is None and not one_hot:  # whole numbers within ±1 may be a controller of full thrust
        return
    how = "are one-hot" if row is None else f"are whole numbers such as {actions[row].max():g}"
    message = f"all actions {how}: these look like choices, and nothing says that they are."
    if log.mapping is None:
        message += " Store choices as one column of whole numbers (an integer type)."
    elif row is not None:
        message += (
            " If they are choices, name the column in `categories`; if they are levels of "
            "something continuous, give `action_bounds`."
        )
    yield "error", "discrete_actions", row, "actions", message


def _actions_out_of_bounds(log: Examined) -> Found:
    actions = log.steps.actions
    row, count = tally(
        len(actions),
        lambda rows: (np.abs(actions[rows]) > 1).any(axis=1) & log.acted(rows),
        width=actions.shape[1],
    )
    if row is None or (log.task is not None and not log.task.unit_actions):
        return
    if not log.signals.bounded and (log.task is None or not log.task.d4rl):
        yield from _without_bounds(log, row, count)
        return
    column = int((np.abs(actions[row]) > 1).argmax())
    message = (
        f"{actions[row, column]:g} lies beyond ±1, and so do actions in {counted(count, 'row')} in "
        "all. They are clipped, so the logged effect belongs to another action."
    )
    yield "warning", "actions_out_of_bounds", row, log.name("actions", column), message


def _without_bounds(log: Examined, row: int, count: int) -> Found:
    """Actions in units of their own: what to paste, with the range that was seen."""
    actions, width = log.steps.actions, log.steps.actions.shape[1]
    low, high = np.full(width, np.inf, np.float32), np.full(width, -np.inf, np.float32)
    for block in blocks(*actions.shape):
        part = actions[block][log.acted(block)]
        low, high = (
            end(seen, of)
            for end, seen, of in (
                (np.minimum, low, part.min(0, initial=np.inf)),
                (np.maximum, high, part.max(0, initial=-np.inf)),
            )
        )
    wide = np.flatnonzero(np.maximum(np.abs(low), np.abs(high)) > 1)
    bounds = ", ".join(
        f"{json.dumps(log.name('actions', i), ensure_ascii=False)} = [{low[i]!s}, {high[i]!s}]"
        for i in wide.tolist()
    )
    one, into = int(wide[0]), log.mapping or f"{log.source}.toml"
    if log.mapping is None and not Path(log.source).is_file():  # a Minari id
        into = "a TOML file and name it with --columns"
    message = (
        f"actions lie beyond [-1, 1] in {counted(count, 'row')}, and nothing says what their "
        f"bounds are: policies act in [-1, 1]. Add to {into}, with the limits of the plant "
        f"in place of the range that was seen:\naction_bounds = {{{bounds}}}"
    )
    yield "error", "actions_out_of_bounds", row, log.name("actions", one), message


def _scales(log: Examined) -> Found:
    """Columns of a state whose spreads are of different orders of magnitude."""
    mean, spread = moments(log.steps.observations, log.good)
    moving = np.flatnonzero(spread > ROUNDING * np.maximum(np.abs(mean), 1e-30))
    if log.good.sum() < 2 or len(moving) < 2:
        return
    wide = int(moving[spread[moving].argmax()])
    unheard = moving[spread[moving] * SCALES < spread[wide]]
    if not unheard.size:
        return

    def said(column: int) -> str:
        name = log.name("observations", column)
        unit = log.signals.units.get(name, "")
        return f"{name} (spread {spread[column]:.3g}{unit and ' '}{unit})"

    others = ", ".join(said(i) for i in unheard[:5].tolist())
    more = f" and {unheard.size - 5:,} more" if unheard.size > 5 else ""
    own = log.task is None or not log.task.d4rl
    message = f"{said(wide)} outweighs {others}{more} by more than {SCALES:,} times. " + (
        "Training, retrieval and coverage therefore divide each column by its own spread, "
        "unless you say otherwise (--data.no-normalise-states, --context.space raw)."
        if own
        else "Distances are taken on the columns as they are, so these have no say in which "
        "states are similar: --context.space standardised, --draw.space standardised."
    )
    yield "warning", "scales", None, log.name("observations", wide), message


def _duplicate_episodes(log: Examined) -> Found:
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

    def prints(episodes: slice | Rows) -> Doubles:
        rows = starts[episodes, None] + np.rint(times * (length[episodes, None] - 1)).astype(int)
        states = log.scaled(rows).reshape(len(rows), -1)
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
        message = (
            f"the episode that starts here is a copy of the one at row {original} "
            f"({len(pairs):,} of {len(starts):,} episodes are copies): they count twice in "
            "training, and neighbours that are copies make the data look denser than it is."
        )
        yield "warning", "duplicate_episodes", int(copy), None, message


RULES: tuple[Callable[[Examined], Found], ...] = (
    _non_finite,
    _invalid_rows,
    successors,
    repeated_steps,
    shifted_rewards,
    _timeouts_as_terminals,
    _constant_dimensions,
    _scales,
    _discrete_actions,
    _actions_out_of_bounds,
    _duplicate_episodes,
)


def _ranges(columns: Rows) -> str:
    """Column numbers as people write them: `3, 12, 30–59`."""
    runs = np.split(columns, np.flatnonzero(np.diff(columns) > 1) + 1)
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}–{r[-1]}" for r in runs)
