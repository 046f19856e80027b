"""Weights of networks on disk, without pickle, and their hash."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from icql.errors import UserError
from icql.files import atomic

Tree = TypeVar("Tree")


def named_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Arrays of a pytree by their path, such as `net.layers.0.weight`."""
    leaves = jax.tree_util.tree_flatten_with_path(eqx.filter(tree, eqx.is_array))[0]
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in leaves
    }


def save_weights(path: Path, tree: Any) -> None:
    """Write the arrays of a pytree as safetensors, atomically."""
    save_arrays(path, named_arrays(tree))


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name as safetensors, atomically."""
    with atomic(path) as temporary:
        save_file({name: np.asarray(x, order="C") for name, x in arrays.items()}, temporary)


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file by name."""
    if not path.is_file():
        raise UserError("there is no such file.", where=str(path))
    try:
        arrays: dict[str, np.ndarray] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"cannot be read as safetensors ({error}).", where=str(path)) from None
    return arrays


def load_weights(path: Path, like: Tree) -> Tree:
    """Fill a pytree shaped as `like` (arrays or shape structs) from a safetensors file."""
    stored = load_arrays(path)

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
        return jax.numpy.asarray(stored[name])

    return jax.tree_util.tree_map_with_path(fill, like)


def tree_hash(tree: Any) -> str:
    """sha256 over names, shapes and bytes of every array: equal only for equal bits."""
    digest = hashlib.sha256()
    for name, array in sorted(named_arrays(tree).items()):
        digest.update(f"{name}{array.shape}{array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
