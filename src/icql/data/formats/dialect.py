"""How a CSV file is written: what separates its cells, and what its decimals.

Found from the first lines where they leave no doubt. A file that could be read in two ways is
refused with the lines that decide it: a wrong guess would give numbers that are off by a thousand.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from icql.data.formats.mapping import Columns, paste_into
from icql.errors import UserError

SEPARATORS = (",", ";", "\t", "|")
STRAY = 20  # times more cells with one decimal sign than with the other decide
SAMPLE = 2**18  # bytes that are looked at
_WITH_COMMA, _WITH_POINT = re.compile(r"[+-]?\d*,\d+"), re.compile(r"[+-]?\d*\.\d+")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}([.,])\d{3}(\1\d{3})*([.,]\d+)?")
_BOTH = re.compile(r"[+-]?\d+([.,]\d{3})+[.,]\d+")


@dataclass(frozen=True)
class Dialect:
    """What separates the cells of a CSV file, and the whole of a number from its fraction."""

    separator: str = ","
    decimal: str = "."


def separator_of(path: Path, columns: Columns) -> str:
    """The separator that a mapping gives, or the one that fits the first lines alone."""
    if not path.is_file():
        raise UserError("there is no such file.", where=str(path))
    return columns.separator or _separator(path, paste_into(path, columns))


def decimal_of(path: Path, separator: str, columns: Columns) -> str:
    """The decimal sign that a mapping gives, or the one that its columns of numbers show."""
    if columns.decimal is not None:
        return columns.decimal
    rows = sample(path, separator)
    names = {*columns.names("observation", "action", "reward", "next_observation")}
    names -= {*columns.categories, *columns.flags}
    listed = [i for i, name in enumerate(rows[0]) if name in names] if rows else []
    return decimal_sign(rows[1:], listed, path, paste_into(path, columns))


def header_of(path: Path, separator: str) -> list[str]:
    """The names of a file's columns."""
    if not path.is_file():
        raise UserError("there is no such file.", where=str(path))
    for _, cells in rows_of(path, separator):
        return cells
    raise UserError("it is empty.", where=str(path))


def rows_of(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every row that is not blank."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=separator, strict=True)
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
        raise unreadable(path, error) from error


def unreadable(path: Path, reason: BaseException) -> UserError:
    """A file that is no CSV."""
    text = (str(reason).splitlines() or [""])[0][:200]
    return UserError(f"it cannot be read as CSV ({text}).", where=str(path))


def sample(path: Path, separator: str) -> list[list[str]]:
    """The cells of the first whole lines, the header among them; of an odd file, none."""
    with path.open("rb") as file:
        head = file.read(SAMPLE)
        if file.read(1):
            head = head[: head.rfind(b"\n") + 1]
    text = head.decode("utf-8-sig", errors="replace")
    try:
        rows = [cells for cells in csv.reader(io.StringIO(text), delimiter=separator) if cells]
    except csv.Error:
        return []
    return rows


def _separator(path: Path, paste: str) -> str:
    samples = {sign: sample(path, sign) for sign in SEPARATORS}
    likely = [sign for sign, rows in samples.items() if rows and len(rows[0]) > 1]
    if len(likely) < 2:
        return likely[0] if likely else ","

    def even(rows: list[list[str]]) -> bool:
        return len(rows) > 1 and all(len(cells) == len(rows[0]) for cells in rows)

    fitting = [sign for sign in likely if even(samples[sign])]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:  # a fault of some row, which reading names
        return max(likely, key=lambda sign: len(samples[sign][0]))
    lines = " or ".join(
        f'separator = "{_said(sign)}"  ({len(samples[sign][0])} columns)' for sign in fitting
    )
    raise UserError(
        f"its cells could be separated by any of {' '.join(map(_said, fitting))}.",
        where=str(path),
        fix=f"Say which in {paste}: {lines}.",
    )


def decimal_sign(rows: list[list[str]], listed: Sequence[int], path: Path, paste: str) -> str:
    """The decimal sign of the listed columns' cells; in doubt, an error that says what to paste."""
    cells = {c[i].strip() for c in rows for i in listed if i < len(c)}
    comma = {cell for cell in cells if _WITH_COMMA.fullmatch(cell)}
    point = {cell for cell in cells if _WITH_POINT.fullmatch(cell)}
    both = {cell for cell in cells if _BOTH.fullmatch(cell)}
    if both:
        raise UserError(
            f"numbers such as {min(both)} have a sign for thousands.",
            where=str(path),
            fix="Write them without, e.g. 1234.5.",
        )
    # a stray cell is named when the rest is read
    if len(point) >= STRAY * len(comma):
        return "."
    if len(comma) >= STRAY * len(point) and not all(_THOUSANDS.fullmatch(cell) for cell in comma):
        return ","
    other = f"{min(point)} as well as {min(comma)}" if point else f"{min(comma)}"
    raise UserError(
        f"it has numbers such as {other}: what is their decimal sign?",
        where=str(path),
        fix=f'Say which in {paste}: decimal = "," or decimal = ".".',
    )


def _said(sign: str) -> str:
    return "\\t" if sign == "\t" else sign
