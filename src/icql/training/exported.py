"""`policy.export`: what only the run knows about its policy, gathered for the card."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from icql.data import Transitions
from icql.errors import UserError
from icql.evidence.alarm import fit_alarm
from icql.files import file_hash
from icql.nn.policies import Standardised
from icql.settings.change import leaves
from icql.training.plan import Plan
from icql.training.run_folder import RunFolder
from icql.training.trained import TrainedPolicy, alarm_space, data_of

NEEDED = "onnx and onnxruntime, which are needed to export a policy, are not installed."


def export_trained(
    trained: TrainedPolicy,
    place: int,
    path: Path,
    *,
    states: int | None,
    rate: float,
    dataset: str | Path | None,
) -> dict[str, Any]:
    """Write the policy of the member at `place`, with an alarm over `states` of its log, or none.

    Returns the card.
    """
    try:
        from icql.export.agreement import Original
        from icql.export.build import check_target, export_file
        from icql.export.policy_nodes import check_exportable
    except ModuleNotFoundError as error:
        raise UserError(NEEDED, where="export", fix="pip install 'icql[onnx]'") from error
    check_target(path)
    folder, plan = RunFolder.open(trained.run), Plan.read(RunFolder.open(trained.run))
    policy: Standardised = trained.member(place)
    check_exportable(policy)
    data = _data(folder, dataset, needed=states is not None)
    alarm = None
    if states is not None and data is not None:
        alarm = fit_alarm(data, rate=rate, space=alarm_space(plan), states=states)
    member = trained.members[place]

    def act(asked: Any) -> Any:
        return trained.act(asked, seed=member.seed, settings=member.settings)

    original = Original(act, policy, trained.signals, alarm, folder.manifest["action_dim"])
    facts = _facts(folder, plan, trained, place)
    if data is not None:
        facts["data"]["rows"] = len(data)
    with _on_the_host():
        return export_file(path, original, facts, None if data is None else data.states)


def _data(folder: RunFolder, dataset: str | Path | None, *, needed: bool) -> Transitions | None:
    """The run's data; None where it is not at hand and nobody insists on it."""
    try:
        return data_of(folder, dataset=dataset)
    except UserError as error:
        if not needed and dataset is None:
            return None
        without = " Or leave the alarm out, which needs it: --no-alarm, in Python alarm=False."
        raise UserError(
            error.what, where=error.where, fix=error.fix + (without if needed else "")
        ) from error


def _facts(folder: RunFolder, plan: Plan, trained: TrainedPolicy, place: int) -> dict[str, Any]:
    """What the run's files say; no paths of the machine it was made on."""
    manifest = folder.manifest
    result = folder.result() if folder.result_path.is_file() else {}
    member = trained.members[place]
    settings = {**dict(leaves(plan.settings)), **member.settings}
    return {
        "algo": plan.algo,
        "task": plan.task,
        "preset": plan.preset,
        "member": member.label,
        "run": {"steps": plan.run.steps, "precision": plan.run.precision},
        "settings": json.loads(json.dumps(settings, default=str), parse_constant=str),
        "data": {"name": _name(plan.dataset), "hash": manifest["data_hash"]},
        "policy_hash": file_hash(folder.policy_path),
        "scores": _scores(result, place),
        "warnings": list(result.get("warnings") or []),
        "verdict": _verdict(folder),
        "trained_with": manifest["versions"],
    }


def _name(dataset: str) -> str:
    """A dataset's name; of a file without the folders, which are nobody's business elsewhere."""
    path = Path(dataset)
    return path.name if path.suffix or path.is_absolute() else dataset


def _scores(result: dict[str, Any], place: int) -> dict[str, Any] | None:
    """The final score of this member, beside that of what was logged."""
    score = result.get("score")
    if not score:
        return None
    parts = score.get("combinations", [score])  # of a grid, in the order of the members
    each = [one for part in parts for one in part["per_seed"]]
    return {"score": each[place], "logged": result.get("behaviour_score")}


def _verdict(folder: RunFolder) -> dict[str, Any] | None:
    """What `icql judge` said of these very weights, if it did."""
    judged = folder.judged()
    if judged is None or judged.get("policy_hash") != file_hash(folder.policy_path):
        return None
    kept = ("verdict", "reasons", "estimate", "interval", "behaviour", "difference")
    return {name: judged.get(name) for name in (*kept, "difference_interval", "seeds")}


@contextlib.contextmanager
def _on_the_host() -> Iterator[None]:
    """Compare with float32 as a CPU computes it: accelerators may round products to less."""
    host = contextlib.nullcontext()
    with contextlib.suppress(RuntimeError):  # there may be no such platform
        host = jax.default_device(jax.local_devices(backend="cpu")[0])
    with host:
        yield
