"""The public face: what `import icql` offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icql.algos.presets import PresetName
from icql.algos.registry import register_algorithm
from icql.data import Task, Transitions, get_task, register_task
from icql.data.arrays import read_size
from icql.errors import UserError
from icql.progress import Display
from icql.settings.change import names_of, override
from icql.settings.grid import Grid
from icql.settings.judge import JudgeSettings
from icql.training.callbacks import Callback
from icql.training.plan import Plan
from icql.training.run_folder import RunFolder

if TYPE_CHECKING:
    from icql.data import load_dataset
    from icql.graph.value_iteration import local_value_iteration
    from icql.nn.in_context import literal_prompt_q, local_weights
    from icql.retrieval import retrieve
    from icql.training.trained import load_alarm, load_critic, load_policy

__all__ = [
    "Callback",
    "Task",
    "Transitions",
    "UserError",
    "get_task",
    "inspect",
    "judge",
    "literal_prompt_q",
    "load_alarm",
    "load_critic",
    "load_dataset",
    "load_policy",
    "local_value_iteration",
    "local_weights",
    "register_algorithm",
    "register_task",
    "retrieve",
    "select",
    "train",
]

# what needs JAX or readers of files is imported on first use
_HOMES = {
    "literal_prompt_q": "icql.nn.in_context",
    "local_value_iteration": "icql.graph.value_iteration",
    "load_alarm": "icql.training.trained",
    "load_critic": "icql.training.trained",
    "load_dataset": "icql.data.datasets",
    "load_policy": "icql.training.trained",
    "local_weights": "icql.nn.in_context",
    "retrieve": "icql.retrieval",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'icql.api' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def train(
    algo: str | None = None,
    *,
    task: str | None = None,
    dataset: str | None = None,
    columns: str | Path | None = None,
    preset: PresetName | None = None,
    steps: int | None = None,
    episodes: int | None = None,
    seeds: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
    memory: str | int | None = None,
    devices: int | None = None,
    grid: Grid | None = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
) -> dict[str, Any]:
    """Train a policy from logged data and return what `result.json` says.

    Args:
        algo: an algorithm by name (`icql algos` lists them); by default the data decides.
        task: a task of the table; gives the environment, the score and the task's settings.
        dataset: a name or a file; by default the task's own data, or the embedded `hopper-mini`.
        columns: the mapping file of a CSV or Parquet log; by default the one beside it.
        preset: `quick`, the default, finishes on two CPU cores in minutes, `paper` holds the
            paper's values, `robust` these with the same strong policy network for every method.
        steps: updates; by default the preset's.
        episodes: per evaluation and seed, 0 for none; by default the preset's.
        seeds: how many seeds to train side by side, by default one; `seed`, by default 0, is the
            first.
        seed: see `seeds`.
        out: run folder to make; by default a new one under `runs/`.
        resume: go on with the run in `out`. What else is given must be what the run was started
            with, but for more `steps`, where no schedule depends on their number, and the place
            of the data.
        settings: changes to the algorithm's settings by dotted name, e.g. {"local.layers": 8}.
        run: changes to steps, evaluation, logging and checkpoints by name.
        memory: what the data may take, in bytes or as "500MB"; by default half of the machine's
            memory. A store (`.icql`) beyond it is read from disk as it is needed, with the same
            result to the bit. Networks, compiled programs and environments come on top.
        devices: how many train together, 0 for all; by default one, or all of a group of processes
            (`icql.training.processes`). The result is that of one, up to rounding.
        grid: settings to vary, each by its dotted name with its values: {"beta": [1, 3, 10]}. Every
            combination is trained with every seed, side by side in one program.
        callbacks: who is told the beginning, every row of metrics and the end, besides TensorBoard:
            subclasses of `icql.Callback` (`icql.training.callbacks` has W&B and trackio).
        quiet: show nothing on standard error.
    """
    from icql.training.trainer import run_training

    named: Any = {"algo": algo, "task": task, "dataset": dataset, "preset": preset}
    named["columns"] = None if columns is None else str(columns)
    if resume and out is None:
        raise UserError("say which run to resume.", where="out")
    asked = {"steps": steps, "episodes": episodes}
    lengths = {name: value for name, value in asked.items() if value is not None}
    begun = Plan.read(RunFolder.open(out)) if resume and out is not None else None
    plan = (begun or Plan.make(**named)).asked(
        **named,
        seed=seed,
        seeds=seeds,
        grid=grid,
        settings=settings,
        run={**(run or {}), **lengths},
    )
    return run_training(
        plan if begun is None else begun.resumed(plan),
        out=plan.default_out() if out is None else Path(out),
        resume=resume,
        display=Display(quiet=quiet),
        memory=None if memory is None else read_size(memory),
        devices=devices,
        given={*names_of(settings or {}), *(run or {}), *lengths},
        callbacks=callbacks,
    )


def judge(
    run: str | Path,
    *,
    against: str | Path | None = None,
    dataset: str | Path | None = None,
    discount: float | None = None,
    settings: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Say from the log alone whether a run's policy is better; returns what `--json` prints.

    Args:
        run: folder of a finished run.
        against: another run on the same data to compare with, instead of the log.
        dataset: where the data is now, if not where it was when the run was made.
        discount: γ of all values; by default the run's own, or 0.99.
        settings: changes to `updates`, `seeds`, `seed`, `held_out`, `graph` and how networks are
            fitted (`icql.settings.judge`).
        quiet: show nothing on standard error.

    Returns:
        `verdict` (better, not shown, worse, cannot be told), `reasons`, `estimate` and `interval`
        beside `behaviour`, the mean discounted return that was logged, `difference` and its
        interval, `effective_sample_size`, and `methods`, `held_out` and `far` with the details
        (docs/judging.md).
    """
    from icql.judging.notebook import Judged
    from icql.judging.runs import judge_run

    return Judged(
        judge_run(
            run,
            against=against,
            dataset=dataset,
            discount=discount,
            settings=override(JudgeSettings(), settings or {}),
            display=Display(quiet=quiet),
        )
    )


def inspect(
    run: str | Path,
    against: str | Path | None = None,
    *,
    out: str | Path | None = None,
    dataset: str | Path | None = None,
    rate: float = 0.05,
    member: int = 0,
    quiet: bool = False,
) -> dict[str, Any]:
    """Write a page to look at: the map of logged states, and what stands behind each value.

    It is one file that needs nothing else; `icql inspect RUN` serves the same page for all states.

    Args:
        run: folder of a finished run.
        against: another run on the same data, to see side by side.
        out: the file to write, `….html`; by default `inspect.html` in the run folder.
        dataset: where the data is now, if not where it was when the run was made.
        rate: of the alarm's false alarms, in new episodes like the logged ones.
        member: which of the seeds and combinations of settings, counted from 0.
        quiet: show nothing on standard error.

    Returns:
        `page`, `bytes`, and how many `points`, `states` with their evidence and `episodes` it has.
    """
    from icql.inspecting.view import View
    from icql.inspecting.webpage import check_out, write_page

    page = RunFolder.open(run).page_path if out is None else Path(out)
    check_out(page)
    runs = [run] if against is None else [run, against]
    display = Display(quiet=quiet)
    view = View(runs, dataset=dataset, rate=rate, display=display, member=member)
    return write_page(view, page)


def select(
    runs: str | Path | Sequence[str | Path],
    *,
    dataset: str | Path | None = None,
    discount: float | None = None,
    settings: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Choose among runs, or the combinations of a grid, by the estimate of :func:`judge`.

    Returns:
        `winner`, whether it is `shown` to be better than every other one, `reasons`, and
        `candidates`, each as :func:`judge` reports it.
    """
    from icql.judging.notebook import Choice
    from icql.judging.runs import select_run

    return Choice(
        select_run(
            [runs] if isinstance(runs, str | Path) else list(runs),
            dataset=dataset,
            discount=discount,
            settings=override(JudgeSettings(), settings or {}),
            display=Display(quiet=quiet),
        )
    )
