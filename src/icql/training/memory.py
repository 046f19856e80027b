"""How much memory training will take on its device, known before the first update.

The compiled program says how much it needs; nothing has to run. Compilation is not done twice: the
loop reuses the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from icql.data.arrays import say_size
from icql.errors import UserError
from icql.training.loop import Loop


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes on the device at the peak of an update, all seeds together."""

    data: int  # transitions and neighbour tables, or the part of them that is held
    states: int  # networks and optimiser states
    work: int  # batches, activations, gradients, code: what comes and goes

    @property
    def beyond_data(self) -> int:
        """Networks and work: what the paper's memory tables count."""
        return self.states + self.work

    @property
    def total(self) -> int:
        """Everything."""
        return self.data + self.beyond_data


def memory_of(loop: Loop, states: Any) -> MemoryNeed:
    """Predict what `loop` will take for such `states`, from its compiled program."""
    needs = loop.compile(states).memory_analysis()
    assert needs is not None  # CPU, GPU and TPU all say
    arrays = jax.tree.leaves(eqx.filter(states, eqx.is_array))
    own = sum(x.addressable_shards[0].data.nbytes for x in arrays)  # of one device, as all here is
    return MemoryNeed(
        data=needs.argument_size_in_bytes - own,
        states=own,
        work=needs.temp_size_in_bytes
        + needs.generated_code_size_in_bytes
        + needs.output_size_in_bytes
        - needs.alias_size_in_bytes,  # states are updated in place
    )


def check_memory(loop: Loop, states: Any) -> MemoryNeed:
    """Refuse a run that does not fit, before its first update.

    Data and states are on the device already; what else is needed must be free there.

    Raises:
        UserError: if it is not.
    """
    needed, free = memory_of(loop, states), free_memory(next(iter(loop.keys.devices())))
    if free is not None and needed.work > free:
        raise UserError(
            f"an update needs {say_size(needed.work)} beside the data and the networks "
            f"({say_size(needed.total)} in all); the device has {say_size(free)} free.",
            where=f"memory, {len(loop.keys)} seed(s)",
            fix="Take fewer seeds (--seeds), a smaller --batch-size or a shorter context.",
        )
    return needed


def free_memory(device: jax.Device) -> int | None:
    """Bytes that can still be taken on a device; None where it cannot be known."""
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"] - stats["bytes_in_use"])
    listing = Path("/proc/meminfo")
    if device.platform != "cpu" or not listing.exists():
        return None
    lines = (line.split() for line in listing.read_text().splitlines())
    return next((int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:"), None)
