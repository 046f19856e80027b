"""Checkpoints of training states: complete, verified, and of the run that they claim to be of.

Beside its arrays a checkpoint keeps a seal: type, shape and SHA-256 of every leaf, the digest of
the plan that was trained, and one of the seal itself. A disk that gives back other bytes is found
out before an update is made from them.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import orbax.checkpoint as ocp

from icql.errors import UserError
from icql.files import make_folder
from icql.seals import DIGEST, agrees, sealed

KEPT = 2  # the newest, and one to fall back on
SEAL = "icql"  # our part of what Orbax keeps beside a checkpoint


class Checkpoints:
    """Saves and restores stacked training states by step.

    `plan` is the digest of what is trained. None: of a run made before there were seals, whose
    checkpoints need none; those that are there are verified all the same.
    """

    def __init__(self, path: Path, plan: str | None = None) -> None:
        logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax tells there what we tell
        logging.getLogger("asyncio").addFilter(_not_of_orbax)  # … as well
        self.path, self.plan = path, plan
        self._damaged: list[int] = []
        # in a group of processes only this one saves, and waits for no other
        own = {jax.process_index()} if jax.process_count() > 1 else None
        alone = ocp.options.MultiprocessingOptions(active_processes=own)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=KEPT, create=False, multiprocessing_options=alone
        )
        self._hook = sys.unraisablehook
        sys.unraisablehook = partial(_silent_once_closed, self._hook)
        with self._said("checkpoints cannot be kept"):
            make_folder(path)
            # the handler is named: else one look at a damaged folder decides how all are read
            handler = ocp.StandardCheckpointHandler()
            self._manager = ocp.CheckpointManager(
                path.absolute(), options=options, item_handlers=handler
            )

    @property
    def latest(self) -> int | None:
        """The newest complete step."""
        step: int | None = self._manager.latest_step()
        return step

    def save(self, step: int, states: Any) -> None:
        """Write in the background; a kill before it is complete leaves the previous one."""
        with self._said(f"the checkpoint of step {step} cannot be written"):
            while self._damaged:  # they would stand in the way of the same updates done again
                self._manager.delete(self._damaged.pop())
            if step in self._manager.all_steps():
                return
            leaves = _leaves(states)
            if jax.process_count() > 1:  # of a group Orbax takes arrays of all, or none of JAX's
                leaves = jax.device_get(leaves)
            seal = {"plan": self.plan, "leaves": {name: _seal(x) for name, x in leaves.items()}}
            self._manager.save(
                step, args=ocp.args.StandardSave(leaves), custom_metadata={SEAL: sealed(seal)}
            )

    def newest(self, like: Any, warn: Callable[[str], None]) -> tuple[int, Any]:
        """The newest step whose checkpoint is whole, and its states; 0 and `like` without any.

        Those that are damaged are named and passed over.

        Raises:
            UserError: there are checkpoints and all are damaged, or they are another run's.
        """
        refused = []
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                states = self.restore(step, like)
            except DamagedCheckpoint as damaged:
                refused.append((step, damaged))
                continue
            for bad, why in refused:
                warn(f"warning: {why} Step {step} is taken instead.")
                self._damaged.append(bad)
            return step, states
        if refused:
            raise UserError(
                " ".join(str(why.what) for _, why in refused),
                where=str(self.path),
                fix="None is left to go on with: train anew with another --out.",
            ) from refused[0][1]
        return 0, like

    def restore(self, step: int, like: Any) -> Any:
        """Read the states saved at `step` into the shape of `like`, and verify them.

        Raises:
            DamagedCheckpoint: it is not what was saved.
            UserError: it was saved by a run of another plan.
        """
        arrays, static = eqx.partition(like, eqx.is_array)
        expected = jax.eval_shape(lambda: _leaves(like))
        seal = self._read(step, lambda: self._manager.metadata(step).custom_metadata.get(SEAL))
        leaves = self._checked_seal(step, seal, expected)
        wanted = ocp.args.StandardRestore(expected)
        stored = self._read(step, lambda: self._manager.restore(step, args=wanted))
        for name, expected_seal in leaves.items():
            if _seal(stored[name]) != expected_seal:
                raise self._damage(step, f"leaf {int(name)} is not what was saved")
        return eqx.combine(
            jax.tree.unflatten(jax.tree.structure(arrays), list(stored.values())), static
        )

    def close(self) -> None:
        """Wait until everything is on disk."""
        with self._said("the last checkpoint cannot be written"):
            self._manager.wait_until_finished()
            self._manager.close()
            sys.unraisablehook = self._hook  # after a failure threads may still have their say

    def _checked_seal(self, step: int, seal: Any, expected: dict[str, Any]) -> dict[str, Any]:
        """The seals of the leaves, once the rest of the seal is as it has to be."""
        if seal is None and self.plan is None:
            return {}
        if isinstance(seal, dict) and DIGEST in seal and not agrees(seal):
            raise self._damage(step, "its seal is not what was saved")
        try:
            plan, leaves = seal["plan"], dict(seal["leaves"])
            shapes = {name: [str(kind), list(shape)] for name, (kind, shape, _) in leaves.items()}
        except (TypeError, KeyError, ValueError):
            raise self._damage(step, "its seal cannot be read") from None
        if plan != self.plan:
            raise UserError(
                f"the checkpoint of step {step} was made by another plan than run.json has now.",
                where=str(self.path.parent / "run.json"),
                fix="Put back what was edited there, or train anew with another --out.",
            )
        if shapes != {name: [str(x.dtype), list(x.shape)] for name, x in expected.items()}:
            raise UserError(
                f"the checkpoint of step {step} holds other networks than this version makes.",
                where=str(self.path),
                fix="Go on with the version that run.json names, or train anew.",
            )
        return leaves

    def _read(self, step: int, read: Callable[[], Any]) -> Any:
        """What `read` returns; damage is a sentence, whatever it makes Orbax raise."""
        try:
            return read()
        except Exception as error:  # of many libraries, each with errors of its own
            raise self._damage(step, _reason(error)) from error

    def _damage(self, step: int, why: str) -> DamagedCheckpoint:
        return DamagedCheckpoint(
            f"the checkpoint of step {step} cannot be restored ({why}).", where=str(self.path)
        )

    @contextlib.contextmanager
    def _said(self, what: str) -> Iterator[None]:
        """Errors of disks and of Orbax as one sentence."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"{what} ({_reason(error)}).",
                where=str(self.path),
                fix="Make room there, or get the right to write; then go on with --resume.",
            ) from error


class DamagedCheckpoint(UserError):
    """A checkpoint that is not as it was saved."""


def _leaves(states: Any) -> dict[str, Any]:
    """Arrays by their place in the tree: Orbax needs plain containers."""
    return {f"{i:05d}": x for i, x in enumerate(jax.tree.leaves(eqx.filter(states, eqx.is_array)))}


def _seal(leaf: Any) -> list[Any]:
    """Type, shape and SHA-256 of the bytes of one array, as JSON gives them back."""
    array = np.asarray(leaf)
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return [str(array.dtype), list(array.shape), digest]


def _silent_once_closed(before: Callable[[Any], Any], said: Any) -> None:
    """Pass over what threads of a failed save or restore, still at it, have to say of its end."""
    if not inspect.iscoroutine(said.object) and "loop is closed" not in str(said.exc_value):
        before(said)


def _not_of_orbax(record: logging.LogRecord) -> bool:
    """Whether asyncio speaks of another's work: of several errors of a save one is told, by us."""
    error = None if record.exc_info is None else record.exc_info[1]
    if error is None or "never retrieved" not in record.getMessage():
        return True
    return "orbax" not in "".join(traceback.format_exception(error))


def _reason(error: Exception) -> str:
    """The first line of what a library says, or at least what it calls it."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
