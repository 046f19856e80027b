"""Files that are whole or absent, JSON, hashes, and where things that can be made again are kept.

The standard library alone: whoever reads or writes a file need not wait for JAX.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from icql.errors import UserError

if sys.platform != "win32":
    import fcntl

TEMPORARY = ".icql-tmp-"  # how all names of temporaries begin
NEW, OLD = "new", "old"  # within one: a folder that is made, and the one it replaces
OTHERS = 24 * 3600.0  # seconds after which temporaries of other machines are taken for stale
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # said of a write, and without a name
SMALL = 10**9  # bytes: nothing that is read whole is as large
_swept: set[Path] = set()  # folders: once in a process is enough
# told of a folder that temporaries are about to be made in, and of those that were made for it
listeners: list[Callable[[Path, list[Path]], None]] = []


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it takes its place only when all went well.

    What has its name is on disk: the file before it is renamed, the name before this returns.
    """
    with _named(path), _working_in(path.parent) as prefix:
        # a name of its own: with the file's name in it, long ones would be too long
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=path.suffix[:16])
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            os.chmod(temporary, 0o644)
            move(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder; when all went well it takes the place of `path` and what was there."""
    with _named(path), scratch_folder(path.parent) as room:
        made, before = room / NEW / path.name, room / OLD / path.name
        for folder in (made, before.parent):
            folder.mkdir(parents=True)
        yield made
        _sync_all(made)
        if path.exists():
            os.replace(path, before)  # killed here: `_sweep` brings the new one to its place
        os.replace(made, path)
        _sync(path.parent)


@contextlib.contextmanager
def scratch_folder(beside: Path) -> Iterator[Path]:
    """A folder within `beside`, gone afterwards; after a kill, when `beside` is next used."""
    with _working_in(beside) as prefix:
        folder = Path(tempfile.mkdtemp(dir=beside, prefix=prefix))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Have errors of the disk speak of `path`: nobody knows the names of temporaries."""
    try:
        yield
    except OSError as error:
        own = error.filename is not None and TEMPORARY in str(error.filename)
        if not own and (error.filename is not None or error.errno not in _FULL):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def move(source: Path, path: Path) -> None:
    """Give a file or folder on the same disk its final name, once all of it is on disk."""
    _sync_all(source)
    os.replace(source, path)
    _sync(path.parent)


def append(path: Path, text: str) -> None:
    """Add to the end of a file that is there, on disk when this returns."""
    with _named(path), path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def make_folder(path: Path) -> list[Path]:
    """Make a folder and those above it, on disk when this returns; says which were made."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        _sync(folder.parent)
    return missing


def _sync_all(path: Path) -> None:
    """Have the system write a file, or a folder and all in it, to disk."""
    inside = path.rglob("*") if path.is_dir() else ()
    for one in (*inside, path):
        _sync(one)


def _sync(path: Path) -> None:
    if path.is_dir() and (sys.platform == "win32" or not os.access(path, os.R_OK)):
        return  # there is no way to ask for it
    # Windows wants the right to write, Linux refuses it for folders
    file = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a disk that cannot, for folders
            raise
    finally:
        os.close(file)


# --- Temporaries of processes that were killed ----------------------------------------------------
# Whoever has temporaries in a folder holds a shared lock on the folder, which the system lets go of
# when its process dies. Who gets the lock alone knows that all temporaries there are stale.


@contextlib.contextmanager
def _working_in(folder: Path) -> Iterator[str]:
    """Make a folder, rid it of stale temporaries, and mark it as in use; yields a prefix of names.

    Where folders cannot be locked (Windows, some network disks), nothing is swept.
    """
    made = make_folder(folder)
    for listener in listeners:
        listener(folder, made)
    with _unmade(made):
        yield from _marked(folder)


def _marked(folder: Path) -> Iterator[str]:
    prefix = f"{TEMPORARY}{_host()}-"
    if sys.platform == "win32" or not os.access(folder, os.R_OK):
        yield prefix
        return
    file = os.open(folder, os.O_RDONLY)
    try:
        stale = [] if folder.resolve() in _swept else _stale(file, folder)
        _swept.add(folder.resolve())
        _lock(file, fcntl.LOCK_SH)
        for one in stale:
            _sweep(one)
        yield prefix
    finally:
        os.close(file)  # and the lock is let go


@contextlib.contextmanager
def _unmade(made: list[Path]) -> Iterator[None]:
    """Take away folders that were made for what then went wrong, unless something lies in them."""
    try:
        yield
    except BaseException:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _stale(file: int, folder: Path) -> list[Path]:
    """The temporaries of `folder`, opened as `file`, that nobody works on."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # somebody works there, or it cannot be locked
        return []
    found = []
    for one in folder.glob(f"{TEMPORARY}*"):
        # other machines' locks are not seen on every network disk
        own = one.name.startswith(f"{TEMPORARY}{_host()}-")
        with contextlib.suppress(OSError):
            if own or time.time() - one.stat().st_mtime > OTHERS:
                found.append(one)
    return found


def sweep(folder: Path) -> None:
    """Rid a folder at once of what processes that died left in it."""
    with contextlib.suppress(OSError):
        file = os.open(folder, os.O_RDONLY)
        try:
            for one in _stale(file, folder):
                _sweep(one)
        finally:
            os.close(file)


def _lock(file: int, kind: int) -> None:
    """Lock, unless another holds it for longer than anybody who follows these rules would."""
    for _ in range(20):
        with contextlib.suppress(OSError):
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return
        time.sleep(0.01)


def _sweep(stale: Path) -> None:
    """Remove a temporary of a process that died; a replacement that it had half done is done."""
    with contextlib.suppress(OSError):
        if not stale.is_dir():
            stale.unlink()
            return
        for made in stale.glob(f"{NEW}/*"):
            place = stale.parent / made.name
            if (stale / OLD / made.name).exists() and not place.exists():
                os.replace(made, place)
                _sync(place.parent)
        shutil.rmtree(stale, ignore_errors=True)


@functools.cache
def _host() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:6]


def check_file(path: Path) -> None:
    """As `check_writable`, of a file that is to be written.

    Raises:
        UserError: it cannot, and why.
    """
    with _refused(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with contextlib.suppress(FileNotFoundError):
            path.lstat()  # a name may be too long by itself
    check_writable(path.parent)


def check_writable(folder: Path) -> None:
    """Try, before hours of work, whether a folder can be made and written to; nothing of it stays.

    What is missing is tried under a name of our own: another run may want the same folders now.

    Raises:
        UserError: it cannot, and why.
    """
    with _refused(folder):
        path = folder.absolute()
        there = next(one for one in (path, *path.parents) if os.path.lexists(one))
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        with scratch_folder(there) as room:
            trial = room / path.relative_to(there)
            trial.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=trial) as file:
                file.write(b"0" * 4096)


@contextlib.contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in a name, a loop of links
        raise UserError(
            f"cannot be written to ({getattr(error, 'strerror', None) or error}).",
            where=str(path),
            fix="Name another place.",
        ) from error


def write_json(path: Path, content: Any) -> None:
    """Write one JSON document, atomically."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_small(path: Path, most: int = SMALL) -> bytes:
    """The bytes of a file that people or we wrote; never those of a pipe or a device, without end.

    Raises:
        UserError: it is no file, or larger than any of its kind.
        OSError: it cannot be read.
    """
    if path.exists() and not path.is_file():
        raise UserError("is not a file.", where=str(path))
    if path.stat().st_size > most:
        raise UserError(f"is larger than {most // 10**6:,} MB.", where=str(path))
    return path.read_bytes()


def read_json(path: Path) -> Any:
    """Read one JSON document or say what is wrong with the file."""
    try:
        return json.loads(read_small(path).decode())
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
        return from_home(given)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = from_home(base)
    if folder.parts[0] == "~":  # a folder of this name would be made wherever one is
        raise UserError(
            "nobody knows where your home folder is.",
            where="HOME",
            fix="Set it, or ICQL_CACHE to a folder for what can be made again.",
        )
    return folder / "icql"


def from_home(path: str | Path) -> Path:
    """A path with `~` and `~user` replaced, where there is such a user; else as it is."""
    return Path(os.path.expanduser(path))
