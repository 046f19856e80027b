"""The machine that trains: what of it decides the bits of a result, and what changed on resume.

XLA cuts sums over the threads of its pool, by default as many as there are cores, so that results
on CPUs depend on that number in their last bits. A run keeps the number that it was begun with:
on however many cores it goes on, its sums are cut in the same way (benchmarks/cores.py).
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

THREADS = "NPROC"  # environment variable that XLA reads when it starts: threads of its pool
HARMLESS = {"cores", "platform", "gymnasium", "gymnasium-robotics", "mujoco"}  # for the updates


def machine() -> dict[str, str]:
    """Model of the CPU, cores that this process may use, and threads that XLA has."""
    return {"cpu": _cpu(), "cores": str(_cores()), "threads": str(_threads or _asked_threads())}


_threads = 0  # of XLA, if we have said how many


def keep_threads(threads: str | None) -> None:
    """Start XLA with as many threads as a run was begun with; too late if JAX is in use already."""
    from jax import devices
    from jax._src.xla_bridge import backends_are_initialized  # there is no public way to ask

    global _threads
    if not (threads or "").isdigit() or backends_are_initialized():
        return
    before = os.environ.get(THREADS)
    os.environ[THREADS] = threads = str(threads)
    try:
        devices()
        _threads = int(threads)
    finally:
        del os.environ[THREADS]
        if before is not None:
            os.environ[THREADS] = before


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, list[str]]:
    """What differs of what both know, e.g. {"cores": ["2", "1"]}."""
    return {
        name: [str(before[name]), value]
        for name, value in now.items()
        if name in before and before[name] != value
    }


def say_changes(changed: Mapping[str, Any]) -> str:
    """One line about it."""
    what = "; ".join(f"{name} {old} → {new}" for name, (old, new) in changed.items())
    if set(changed) <= HARMLESS:
        return f"goes on elsewhere: {what}. Updates are computed to the same bits."
    return f"goes on elsewhere: {what}. Updates may be rounded otherwise than where it was begun."


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _asked_threads() -> int:
    said = os.environ.get(THREADS, "")
    return int(said) if said.isdigit() and int(said) > 0 else _cores()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(x.partition(":")[2].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):  # not Linux, or a CPU of another kind
        return platform.processor() or platform.machine()
