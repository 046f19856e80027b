"""Pages that need nothing else: no script, font or picture from elsewhere, in one look."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

# what JSON may hold and a script element may not
_IN_SCRIPT = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def look() -> str:
    """The style of all pages."""
    return resources.files("icql").joinpath("pages.css").read_text()


def document(
    title: str, body: str, *, style: str, script: str, policy: str = "", data: Any = None
) -> str:
    """A whole page; `body` is HTML whose words are escaped, `data` is what the script reads.

    `policy` is a Content-Security-Policy that a file keeps even where no server says it.
    """
    said = f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
    held = f'<script type="application/json" id="data">{in_script(data)}</script>'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        + (said if policy else "")
        + '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n"
        f"<body>{body}{held if data is not None else ''}<script>{script}</script></body></html>\n"
    )


def note(
    title: str, lines: Sequence[str], head: Sequence[str] = (), rows: Sequence[Sequence[Any]] = ()
) -> str:
    """A few lines and a table as HTML for a notebook, which has a style of its own.

    All words are escaped; numbers are rounded to four digits.
    """
    said = "".join(f"<div>{escape(line)}</div>" for line in lines)
    table = ""
    if rows:
        top = "".join(f"<th>{escape(name)}</th>" for name in head)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_cell(value))}</td>" for value in row) + "</tr>"
            for row in rows
        )
        table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div><strong>{escape(title)}</strong>{said}{table}</div>"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def only(style: str, script: str, *more: str) -> str:
    """The Content-Security-Policy of a page that has this style and this script and no other."""
    parts = ["default-src 'none'", f"style-src {_hash(style)}", f"script-src {_hash(script)}"]
    return "; ".join([*parts, "base-uri 'none'", "form-action 'none'", *more])


def in_script(data: Any) -> str:
    """Data as JSON that cannot end the element it stands in."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).translate(_IN_SCRIPT)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
