"""`icql data fetch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tyro

from icql.cli.data_shared import Flag, Options, bars
from icql.data.download import fetch, url_of
from icql.data.formats.minari_source import PREFIX, fetch_minari
from icql.errors import UserError

DESCRIPTION = """Fetch a D4RL dataset into the user's cache, or a Minari dataset into Minari's.

A fetch that broke off goes on where it stopped. ICQL_D4RL_URL names a mirror, ICQL_CACHE another
folder."""


@dataclass(frozen=True, kw_only=True)
class Fetch(Options):
    """The options of `icql data fetch`."""

    name: tyro.conf.Positional[str]
    """D4RL name, e.g. hopper-medium-v2, or minari:ID."""
    sha256: str | None = None
    """What the file must hash to."""
    force: Flag = False
    """Fetch it even if it is there."""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Parse, fetch, print."""
    options = tyro.cli(Fetch, prog="icql data fetch", description=DESCRIPTION, args=argv)
    name = options.name
    if name.startswith(PREFIX):
        if options.sha256 is not None:
            raise UserError("Minari datasets have no checksum to compare.", where="--sha256")
        fetch_minari(name.removeprefix(PREFIX))
        result: dict[str, Any] = {"name": name, "path": None}
    else:
        url = url_of(name)
        with bars() as show:
            path = fetch(
                name,
                sha256=options.sha256,
                force=options.force,
                progress=lambda done, of: show(f"kB of {name}", done // 1000, of // 1000, ""),
            )
        result = {"name": name, "path": str(path), "url": url, "bytes": path.stat().st_size}
    if options.json:
        return result
    print(result["path"] or name)
    return None
