"""D4RL's files by name: fetched once, checked, kept in the user's cache.

A broken connection is taken up again where it broke, also by a later call. A file takes its final
name only when it is whole, and lies beside a record of its address, size and SHA-256.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import ssl
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from icql.data.tasks import get_task, is_task, list_tasks
from icql.errors import UserError, nearest
from icql.files import default_cache_dir, file_hash, make_folder, move, write_json
from icql.locks import queued

BASE = "http://rail.eecs.berkeley.edu/datasets/offline_rl"
BASE_VARIABLE = "ICQL_D4RL_URL"  # environment variable: a mirror with the same layout
TIMEOUT = 60.0  # seconds without a byte
RETRIES = 5  # broken connections in a row that bring nothing
WAIT = 1.0  # seconds before the first new attempt; doubled with each
CHUNK = 2**18
SLOWEST = 1000  # bytes a second, over TIMEOUT: less would take days
MOST = 50 * 10**9  # bytes: no dataset of D4RL is nearly as large

_WEB = ("http://", "https://")
_MAGIC = b"\x89HDF\r\n\x1a\n"
_ODD = f"A proxy may have answered instead, or {BASE_VARIABLE} is wrong."
_CONNECTION = (URLError, HTTPException, ssl.SSLError, ConnectionError, TimeoutError)
Listener = Callable[[int, int], None]  # bytes done, bytes in all (0 where the server is silent)


class _Broken(Exception):
    """The connection failed in a way that another attempt may mend."""


class _Redirects(HTTPRedirectHandler):
    """To other places on the web alone; Python's would also follow to FTP."""

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        """The request to the new place."""
        if not newurl.startswith(_WEB):
            raise UserError(
                f"the server sends us on to {newurl[:200]!r}, which is not a web address.",
                where=req.full_url,
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def urlopen(request: Request, timeout: float) -> Any:
    """Ask a server; as Python's, with our rules."""
    return build_opener(_Redirects).open(request, timeout=timeout)


def datasets_dir() -> Path:
    """The folder of fetched files in the user's cache (`$ICQL_CACHE`)."""
    return default_cache_dir() / "datasets"


def cached_file(name: str) -> Path:
    """Where the file of dataset `name` lies once it is fetched."""
    return datasets_dir() / f"{name}.hdf5"


def url_of(name: str) -> str:
    """The address of a D4RL dataset; `$ICQL_D4RL_URL` may name a mirror."""
    file = get_task(name).d4rl_file if is_task(name) else None
    if file is None:
        known = [task for task in list_tasks() if get_task(task).d4rl_file]
        raise UserError(
            f"D4RL has no dataset {name!r} that could be fetched.", fix=nearest(name, known)
        )
    return f"{os.environ.get(BASE_VARIABLE, BASE).rstrip('/')}/{file}"


def fetch(
    name: str,
    *,
    sha256: str | None = None,
    force: bool = False,
    progress: Listener | None = None,
    tell: Callable[[str], None] | None = None,
) -> Path:
    """Fetch a D4RL dataset into the cache, unless it is there and intact; returns its path.

    Args:
        name: D4RL's name of the dataset.
        sha256: what the file must hash to, as 64 hexadecimal digits. Without it, the hash of the
            first download is recorded and later copies are held against that record.
        force: fetch it even if it is there.
        progress: called with the bytes done and in all.
        tell: called with a sentence when it has to wait, for another process that fetches it or
            before a new attempt.

    Raises:
        UserError: an unknown name, no such file on the server, no connection after several
            attempts, or a file of another size or hash; then nothing has the final name.
    """
    url, path = url_of(name), cached_file(name)
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise UserError("must be 64 hexadecimal digits.", where="sha256")
    if path.is_file() and not force and _intact(path, sha256):
        return path
    said = functools.cache(tell or (lambda _: None))  # once of each

    def wait(who: str) -> None:
        said(f"waiting for {who}, which fetches {name}")

    make_folder(path.parent)
    with queued(path.with_name(f".{path.name}.lock"), wait):
        if path.is_file() and not force and _intact(path, sha256):  # by who was first
            return path
        return _fetched(url, path, sha256, progress, said)


def _fetched(
    url: str,
    path: Path,
    sha256: str | None,
    progress: Listener | None,
    tell: Callable[[str], None],
) -> Path:
    """Fetch a file to `path`; as `fetch`."""
    part = path.with_name(f"{path.name}.part")
    _download(url, part, progress, tell)
    digest = file_hash(part)
    if sha256 is not None and digest != sha256.lower():
        _discard(part)
        raise UserError(
            f"the fetched file has SHA-256 {digest}, but {sha256.lower()} was expected.",
            where=url,
            fix="The file was changed or the expectation is wrong; nothing was kept.",
        )
    with part.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            _discard(part)
            raise UserError(
                "the server sent something that is not an HDF5 file.",
                where=url,
                fix=_ODD,
            )
    write_json(_record(path), {"url": url, "bytes": part.stat().st_size, "sha256": digest})
    move(part, path)
    _discard(part)
    return path


def check_fetched(name: str) -> None:
    """Refuse a fetched file that is not the one which was fetched; others have no record."""
    path = cached_file(name)
    recorded = _read_json(_record(path)).get("sha256")
    if recorded is not None and path.is_file() and file_hash(path) != recorded:
        raise UserError(
            "is not what was fetched: it was changed or is damaged.",
            where=str(path),
            fix=f"Fetch it again: icql data fetch {name}",
        )


def _intact(path: Path, sha256: str | None) -> bool:
    """Whether a file that is there is the one that was fetched; False if it was damaged since."""
    recorded = _read_json(_record(path)).get("sha256")
    if sha256 is None and recorded is None:
        return True  # put there by hand
    digest = file_hash(path)
    if sha256 is not None and digest == recorded != sha256.lower():
        raise UserError(
            f"it has SHA-256 {digest}, but {sha256.lower()} was expected.",
            where=str(path),
            fix="Fetch it again with --force, or correct the expectation.",
        )
    return digest == (sha256.lower() if sha256 else recorded)


def _download(url: str, part: Path, progress: Listener | None, tell: Callable[[str], None]) -> None:
    """Bring `part` to its full size, over as many connections as it takes."""
    failures = 0
    while True:
        before = _size(part)
        try:
            _continue(url, part, progress)
            return
        except _Broken as error:
            failures = 0 if _size(part) > before else failures + 1
            if failures > RETRIES:
                kept = f"{_size(part):,} bytes are kept in {part} and not fetched twice."
                hand = f"Is there a network? {BASE_VARIABLE} names a mirror; or fetch it by hand."
                raise UserError(
                    f"the connection failed {failures} times ({error}).",
                    where=url,
                    fix=f"Try again: {kept}" if _size(part) else hand,
                ) from error
            wait = WAIT * 2**failures if failures else 0
            if wait:
                tell(f"the connection failed ({error}): once more in {wait:.0f} s")
            time.sleep(wait)


def _continue(url: str, part: Path, progress: Listener | None) -> None:
    """One connection: append what is missing to `part`, or start anew if the server insists."""
    known = _read_json(_record(part))
    offset = _size(part) if known.get("url") == url and known.get("version") else 0
    if not url.startswith(_WEB):
        raise UserError(f"{url!r} is not a web address.", where=BASE_VARIABLE)
    headers = {"Accept-Encoding": "identity", "User-Agent": "icql"}
    if offset:
        headers |= {"Range": f"bytes={offset}-", "If-Range": str(known["version"])}
    try:
        with urlopen(Request(url, headers=headers), timeout=TIMEOUT) as response:
            start, total = _understand(response, offset)
            free = shutil.disk_usage(part.parent).free
            if total - start > free:
                raise UserError(
                    f"{total:,} bytes are needed, but only {free:,} are free.",
                    where=str(part.parent),
                    fix="Make room, or set ICQL_CACHE to another folder.",
                )
            if start == 0:
                part.unlink(missing_ok=True)
                write_json(_record(part), {"url": url, "version": _version(response)})
            _append(response, part, start, total, progress)
    except HTTPError as error:
        if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{offset}":
            return  # all of it was there already
        if error.code == 416:
            _discard(part)
        elif error.code < 500 and error.code not in (408, 429):
            raise UserError(
                f"the server answers {error.code} ({error.reason}).",
                where=url,
                fix=f"The file may have moved: set {BASE_VARIABLE} to a mirror, or fetch it by "
                "hand and give its path.",
            ) from error
        raise _Broken(str(error)) from error
    except _CONNECTION as error:
        reason = getattr(error, "reason", error)  # less of urllib's brackets
        raise _Broken(str(reason) or type(error).__name__) from error


def _understand(response: Any, offset: int) -> tuple[int, int]:
    """From which byte on the server sends the file, and its size in all (0: unknown)."""
    stated = response.headers.get("Content-Length", "")
    # more digits than any size has: not read, Python refuses thousands
    length = int(stated[:20]) if stated.isdecimal() else 0
    if length > MOST:
        raise UserError(f"the server promises {length:,} bytes.", where=response.url, fix=_ODD)
    if response.status != 206:
        return 0, length
    start = re.match(r"bytes (\d{1,20})-", response.headers.get("Content-Range", ""))
    if start is None or int(start[1]) != offset:
        raise _Broken("the server sent another part of the file than asked for")
    return offset, offset + length if length else 0


def _version(response: Any) -> str | None:
    """What tells this version of the file from a later one."""
    etag: str | None = response.headers.get("ETag")
    # Only a strong mark says that bytes of two answers belong together.
    strong = etag if etag and not etag.startswith("W/") else None
    return strong or response.headers.get("Last-Modified")


def _append(response: Any, part: Path, done: int, total: int, progress: Listener | None) -> None:
    first, begin = done, time.monotonic()
    with part.open("ab") as file:
        while chunk := response.read1(CHUNK):  # whatever came: a broken connection loses nothing
            file.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
            if (seconds := time.monotonic() - begin) > TIMEOUT:
                if done - first < SLOWEST * seconds:
                    raise UserError(
                        f"the server sends less than {SLOWEST:,} bytes a second.",
                        where=response.url,
                        fix=f"Try again later: {done:,} bytes are kept and not fetched twice.",
                    )
                first, begin = done, time.monotonic()
            if done > MOST:  # it had not said how much it would be
                break
    if done > MOST:
        _discard(part)
        raise UserError(f"the server sends more than {MOST:,} bytes.", where=response.url, fix=_ODD)
    if total and done < total:
        raise _Broken(f"it ended after {done:,} of {total:,} bytes")
    if _size(part) != done:  # somebody else wrote to it as well
        _discard(part)
        raise _Broken("two programs fetched it at once")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _record(path: Path) -> Path:
    """What is known of a file, or of a part of one: a JSON document beside it."""
    return path.with_name(f"{path.name}.json")


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _record(part).unlink(missing_ok=True)


def _read_json(path: Path) -> dict[str, Any]:
    """What was recorded; nothing if the record is missing or damaged."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
