"""Checkpoints of the whole training state, by Orbax: complete or absent, never half-written."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import orbax.checkpoint as ocp

from icql.errors import UserError


class Checkpoints:
    """Saves and restores stacked training states by step."""

    def __init__(self, path: Path) -> None:
        logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax reports every save there
        self.path = path
        # in a group of processes only this one saves, and waits for no other
        own = {jax.process_index()} if jax.process_count() > 1 else None
        alone = ocp.options.MultiprocessingOptions(active_processes=own)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2, create=False, multiprocessing_options=alone
        )
        path.mkdir(parents=True, exist_ok=True)
        self._manager = ocp.CheckpointManager(path.absolute(), options=options)

    @property
    def latest(self) -> int | None:
        """The newest complete step."""
        step: int | None = self._manager.latest_step()
        return step

    def save(self, step: int, states: Any) -> None:
        """Write in the background; a kill before it is complete leaves the previous one."""
        if step not in self._manager.all_steps():
            leaves = _leaves(states)
            if jax.process_count() > 1:  # of a group Orbax takes arrays of all, or none of JAX's
                leaves = jax.device_get(leaves)
            self._manager.save(step, args=ocp.args.StandardSave(leaves))

    def restore(self, step: int, like: Any) -> Any:
        """Read the states saved at `step` into the shape of `like`."""
        leaves = jax.eval_shape(lambda: _leaves(like))
        try:
            stored = self._manager.restore(step, args=ocp.args.StandardRestore(leaves))
        except (ValueError, KeyError, FileNotFoundError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"the checkpoint of step {step} cannot be restored ({reason}).",
                where=str(self.path),
                fix="Delete that step's folder to resume from the one before.",
            ) from error
        arrays, static = eqx.partition(like, eqx.is_array)
        structure = jax.tree.structure(arrays)
        return eqx.combine(jax.tree.unflatten(structure, list(stored.values())), static)

    def close(self) -> None:
        """Wait until everything is on disk."""
        self._manager.wait_until_finished()
        self._manager.close()


def _leaves(states: Any) -> dict[str, Any]:
    """Arrays by their place in the tree: Orbax needs plain containers."""
    return {f"{i:05d}": x for i, x in enumerate(jax.tree.leaves(eqx.filter(states, eqx.is_array)))}
