"""The page itself: one file to send, or what a browser is first sent by `icql inspect`."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from icql.errors import UserError
from icql.files import atomic
from icql.inspecting.view import View
from icql.pages import document, look, only

TITLE = "What stands behind a run"
BODY = '<main id="page"><p>This page needs its own script to run.</p></main>'


def assets() -> tuple[str, str]:
    """Style and script."""
    files = resources.files("icql.inspecting")
    style, script = (files.joinpath(f"inspect.{kind}").read_text() for kind in ("css", "js"))
    return look() + style, script


def served_policy() -> str:
    """The Content-Security-Policy of the served page: it may ask its own server and no other."""
    return only(*assets(), "connect-src 'self'", "frame-ancestors 'none'")


def served_page(view: View) -> str:
    """The page that asks its server for states and episodes."""
    style, script = assets()
    data = {**view.head(), "served": True, "episodes": view.list_episodes()}
    return document(TITLE, BODY, style=style, script=script, data=data)


def check_out(path: Path) -> None:
    """Refuse a place where no page can be written, before hours of work."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"must end in .html, not {path.name!r}.", where="--out")
    if path.is_dir():
        raise UserError("is a folder.", where=str(path), fix="Name a file in it: page.html.")
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir():
        raise UserError(f"{above} is not a folder.", where=str(path))


def write_page(view: View, path: Path) -> dict[str, Any]:
    """Write the page as one file; says what is in it."""
    check_out(path)
    style, script = assets()
    data: dict[str, Any] = {**view.head(), "served": False, **view.kept()}
    page = document(TITLE, BODY, style=style, script=script, policy=only(style, script), data=data)
    try:
        with atomic(path) as temporary:
            temporary.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot be written ({error.strerror}).", where=str(path)) from None
    return {
        "page": str(path),
        "bytes": path.stat().st_size,
        "transitions": len(view.data),
        "points": len(view.rows),
        "states": len(data["kept"][0]["row"]["data"]) * 3 // 4 // 4,
        "episodes": len(data["series"]),
    }
