"""A group of processes, on one host or several, that train one run together.

Every process is started by the user with the same command and three variables:

    ICQL_COORDINATOR=host:port ICQL_PROCESSES=2 ICQL_PROCESS=0 icql train …

All load the same data and compute the same updates, each on its own devices (`jax.distributed`).
The first, number 0, alone looks at the policies and writes the run folder.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from icql.errors import UserError

DAY = 24 * 3600  # seconds
NAMES = ("ICQL_COORDINATOR", "ICQL_PROCESSES", "ICQL_PROCESS")
_waits = itertools.count()  # every wait needs a name of its own


def join_group() -> None:
    """Join the group that the environment names; without one, or once in it, do nothing.

    Raises:
        UserError: the variables make no sense, or JAX has been used before in this process.
    """
    given = {name: os.environ[name] for name in NAMES if name in os.environ}
    if not given or jax.distributed.is_initialized():
        return
    if len(given) < len(NAMES):
        missing = ", ".join(name for name in NAMES if name not in given)
        raise UserError(
            "is missing.", where=missing, fix=f"Set all of {', '.join(NAMES)}, or none."
        )
    processes, process = (_number(name, given[name]) for name in NAMES[1:])
    if not 0 <= process < processes:
        raise UserError(f"must be one of 0 … {processes - 1}, not {process}.", where="ICQL_PROCESS")
    try:
        jax.distributed.initialize(given["ICQL_COORDINATOR"], processes, process)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"the group cannot be joined ({str(error).splitlines()[0]})",
            where="ICQL_COORDINATOR",
            fix="All processes need the same host:port, and must join before they use JAX.",
        ) from error


def is_first() -> bool:
    """Whether this process looks at the policies and writes the run folder."""
    return jax.process_index() == 0


@contextlib.contextmanager
def stopping_together() -> Iterator[None]:
    """Where one process refuses what stands in this block, the others stop as well."""
    try:
        yield
    except UserError:
        _any_of(True)
        raise
    if _any_of(False):
        raise UserError("another process of the group has stopped, and says why.")


def wait_for_all() -> None:
    """Wait until every process of the group is here; what they compute together waits far less.

    The first one looks at policies meanwhile, and each may have contexts to retrieve.
    """
    everyone = set(range(jax.process_count()))
    multihost.sync_global_processes(f"icql-{next(_waits)}", timeout=DAY, processes=everyone)


def agree(number: int) -> int:
    """Return the number that the first process passed; every process of a group must ask."""
    return int(share(jnp.asarray(number)))


def share(tree: Any) -> Any:
    """Return the arrays that the first process passed; every process of a group must ask."""
    if jax.process_count() == 1:
        return tree
    wait_for_all()
    arrays, rest = eqx.partition(tree, eqx.is_array)
    shared = multihost_utils.broadcast_one_to_all(arrays)
    return eqx.combine(jax.tree.map(jnp.asarray, shared), rest)


def _any_of(flag: bool) -> bool:
    """Whether any process of the group passed True; every process must ask."""
    if jax.process_count() == 1:
        return flag
    wait_for_all()
    return bool(np.any(multihost_utils.process_allgather(jnp.asarray(flag))))


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f"must be a whole number, not {text!r}.", where=name) from None
