"""Weights of networks on disk, without pickle, and their hash.

A file carries the hash of its arrays: other numbers than those written are never believed. Files
made before they did are read as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from icql.errors import UserError
from icql.files import atomic

Tree = TypeVar("Tree")
DIGEST = "sha256"  # under this name among the file's notes, and whose the arrays are


def named_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Arrays of a pytree by their path, such as `net.layers.0.weight`."""
    leaves = jax.tree_util.tree_flatten_with_path(eqx.filter(tree, eqx.is_array))[0]
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in leaves
    }


def save_weights(path: Path, tree: Any, *, of: str | None = None) -> None:
    """Write the arrays of a pytree as safetensors, atomically; `of` says whose they are."""
    save_arrays(path, named_arrays(tree), of=of)


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray], *, of: str | None = None) -> None:
    """Write arrays by name and their hash as safetensors, atomically."""
    plain = {name: np.asarray(x, order="C") for name, x in arrays.items()}
    # one note alone: safetensors writes several in any order, and equal runs have equal files
    note = f"{_digest(plain)} {of or ''}".strip()
    with atomic(path) as temporary:
        save_file(plain, temporary, metadata={DIGEST: note})


def load_arrays(path: Path, *, of: str | None = None) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file by name, if they are those that were written.

    Given `of`, they have to be those of that very run.
    """
    if not path.is_file():
        raise UserError("there is no such file.", where=str(path))
    try:
        with safe_open(path, framework="numpy") as file:
            notes = file.metadata()
        arrays: dict[str, np.ndarray] = load_file(path)
    # a type that NumPy does not have, in a header that is damaged, is a KeyError
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot be read as safetensors ({error}).", where=str(path)) from None
    digest, _, whose = ("" if notes is None else notes.get(DIGEST, "")).partition(" ")
    if notes is not None and digest != _digest(arrays):
        raise UserError(
            "its numbers are not those that were written: it was changed or is damaged.",
            where=str(path),
            fix="Take a copy that is whole, or train again.",
        )
    if of is not None and whose != of:
        raise UserError(
            "is of another run.", where=str(path), fix="Put back the run's own file, or resume it."
        )
    return arrays


def load_weights(path: Path, like: Tree, *, of: str | None = None) -> Tree:
    """Fill a pytree shaped as `like` (arrays or shape structs) from a safetensors file."""
    stored = load_arrays(path, of=of)

    def fill(key: tuple[Any, ...], leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray):
            return leaf
        name = jax.tree_util.keystr(key, simple=True, separator=".")
        if name not in stored or stored[name].shape != leaf.shape:
            found = stored[name].shape if name in stored else "nothing"
            raise UserError(
                f"holds {found} for {name}, expected {leaf.shape}.",
                where=str(path),
                fix="The file belongs to other settings or another version.",
            )
        if stored[name].dtype != leaf.dtype:
            raise UserError(
                f"holds {stored[name].dtype} for {name}, expected {leaf.dtype}.", where=str(path)
            )
        check_numbers(path, name, stored[name])
        return jax.numpy.asarray(stored[name])

    return jax.tree_util.tree_map_with_path(fill, like)


def check_numbers(path: Path, name: str, array: np.ndarray) -> None:
    """Refuse numbers that nothing can be computed from."""
    # types that NumPy borrows (bfloat16) are of kind V, and know what is finite
    if array.dtype.kind in "fcV" and not np.isfinite(array).all():
        raise UserError(
            f"{name} holds numbers that are not finite.",
            where=str(path),
            fix="Training diverged, or the file is not one of ours.",
        )


def tree_hash(tree: Any) -> str:
    """sha256 over names, shapes and bytes of every array: equal only for equal bits."""
    return _digest(named_arrays(tree))


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name}{array.shape}{array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
