"""What is wrong with a CSV file, by a slow second look at it.

The fast reader only says that something is wrong; this one finds the first row and column.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from icql.errors import UserError

Kind = Literal["number", "whole number", "any"]


def read_header(path: Path, delimiter: str) -> list[str]:
    """The names of the columns.

    Raises:
        UserError: if the file is missing, empty, or not text in UTF-8.
    """
    if not path.is_file():
        raise UserError("there is no such file.", where=str(path))
    for _, cells in _rows(path, delimiter):
        return cells
    raise UserError("it is empty.", where=str(path))


def first_fault(
    path: Path, delimiter: str, kinds: Mapping[str, Kind], reason: BaseException
) -> UserError:
    """The first thing in the file that does not fit; `reason` if none is found.

    Rows are counted from 0 below the header, as everywhere here; the line of the file is added.
    """
    try:
        return _search(path, delimiter, kinds) or _unreadable(path, reason)
    except UserError as error:
        return error


def _search(path: Path, delimiter: str, kinds: Mapping[str, Kind]) -> UserError | None:
    header: list[str] | None = None
    row = -1
    for line, cells in _rows(path, delimiter):
        if header is None:
            header = cells
            continue
        row += 1
        if len(cells) != len(header):
            return UserError(
                f"row {row} (line {line}) has {len(cells)} cells, but there are "
                f"{len(header)} columns.",
                where=str(path),
                fix="Every row needs one cell per column; cells with a delimiter need quotes.",
            )
        for name, cell in zip(header, cells, strict=True):
            if not _fits(cell, kinds.get(name, "any")):
                return UserError(
                    f"column {name!r} is {cell[:40]!r} at row {row} (line {line}), "
                    f"but a {kinds[name]} is needed.",
                    where=str(path),
                )
    if row < 0:
        return UserError("there are no steps in it (zero rows).", where=str(path))
    return None


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every row that is not blank."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
    except UnicodeDecodeError as error:
        raise UserError(
            f"it is not text in UTF-8 (byte {error.object[error.start]:#04x}).",
            where=str(path),
            fix="Save it as CSV in UTF-8.",
        ) from error
    except (csv.Error, OSError) as error:
        raise _unreadable(path, error) from error


def _fits(cell: str, kind: Kind) -> bool:
    if kind == "any":
        return True
    try:
        int(cell) if kind == "whole number" else float(cell)
    except ValueError:
        return False
    return True


def _unreadable(path: Path, reason: BaseException) -> UserError:
    text = (str(reason).splitlines() or [""])[0][:200]
    return UserError(f"it cannot be read as CSV ({text}).", where=str(path))
