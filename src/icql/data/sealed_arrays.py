"""Arrays by name in one NPZ file that carries a hash of them and of the place they are meant for.

For what is made on the way and read again: drafts, spaces of contexts, parts of a journal. Files
made before had no hash, but the checksums of the archive.
"""

from __future__ import annotations

import hashlib
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.errors import UserError
from icql.files import atomic

Arrays = Mapping[str, NDArray[Any]]
HASH = "sha256"  # its name among the arrays
# what NumPy and zipfile raise depends on where in the file the damage is: headers are parsed as
# Python, archives may claim to be encrypted
DAMAGE: tuple[type[Exception], ...] = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, SyntaxError),
    *(RuntimeError, MemoryError, OverflowError, zipfile.BadZipFile, zlib.error, struct.error),
    tokenize.TokenError,
)


def write_arrays(path: Path, arrays: Arrays, bound: str) -> None:
    """Write arrays for the place `bound`, whole or not at all."""
    kept: dict[str, Any] = {**arrays, HASH: np.frombuffer(_hashed(arrays, bound), np.uint8)}
    with atomic(path) as temporary:
        np.savez(temporary, allow_pickle=False, **kept)


def read_arrays(path: Path, bound: str) -> dict[str, NDArray[Any]]:
    """What `write_arrays` wrote for this place.

    Raises:
        UserError: it is absent, damaged, or meant for another place.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except DAMAGE as error:
        said = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(f"cannot be read ({said}).", where=str(path)) from error
    if not found:  # the end of an archive is gone, and with it the names of what is in it
        raise UserError("holds nothing: it is damaged.", where=str(path))
    hashed = found.pop(HASH, None)
    if hashed is not None and hashed.tobytes() != _hashed(found, bound):
        raise UserError(
            "is not what was written: it was changed, or is meant for another place.",
            where=str(path),
        )
    return found


def _hashed(arrays: Arrays, bound: str) -> bytes:
    digest = hashlib.sha256(bound.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()
