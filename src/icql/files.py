"""Files that are whole or absent, JSON, hashes, and where things that can be made again are kept.

The standard library alone: whoever reads or writes a file need not wait for JAX.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from icql.errors import UserError


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it takes its place only when all went well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Try, before hours of work, whether a folder can be made and written to; nothing of it stays.

    Raises:
        UserError: it cannot, and why.
    """
    made: list[Path] = []
    try:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir()
            made.append(path)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0" * 4096)
    except (OSError, ValueError) as error:  # a name with a NUL in it is a ValueError
        raise UserError(
            f"cannot be written to ({getattr(error, 'strerror', None) or error}).",
            where=str(folder),
            fix="Give another --out.",
        ) from error
    finally:
        for path in reversed(made):
            with contextlib.suppress(OSError):  # another run may have begun in it
                path.rmdir()


def write_json(path: Path, content: Any) -> None:
    """Write one JSON document, atomically."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read one JSON document or say what is wrong with the file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError("there is no such file.", where=str(path)) from None
    except (ValueError, RecursionError) as error:  # no JSON, no text, nested without end
        raise UserError(f"is not valid JSON ({error}).", where=str(path)) from None


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def default_cache_dir() -> Path:
    """$ICQL_CACHE, or the folder `icql` in the platform's cache folder of the user."""
    if given := os.environ.get("ICQL_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "icql"
