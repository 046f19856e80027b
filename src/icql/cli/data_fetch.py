"""`icql data fetch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tyro

from icql.data.download import fetch, url_of
from icql.data.minari_source import fetch_minari
from icql.errors import UserError
from icql.progress import Display, Work

DESCRIPTION = """Fetch a D4RL dataset into the user's cache, or a Minari dataset into Minari's.

A fetch that broke off goes on where it stopped. ICQL_D4RL_URL names a mirror, ICQL_CACHE another
folder."""


@dataclass(frozen=True)
class Fetch:
    """The options of `icql data fetch`."""

    name: tyro.conf.Positional[str]
    """D4RL name, e.g. hopper-medium-v2, or minari:ID."""
    sha256: str | None = None
    """What the file must hash to."""
    force: tyro.conf.FlagCreatePairsOff[bool] = False
    """Fetch it even if it is there."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object on standard output."""


def run(argv: list[str]) -> dict[str, Any] | None:
    """Parse, fetch, print."""
    options = tyro.cli(Fetch, prog="icql data fetch", description=DESCRIPTION, args=argv)
    if options.name.startswith("minari:"):
        if options.sha256 is not None:
            raise UserError("Minari datasets have no checksum to compare.", where="--sha256")
        fetch_minari(options.name.removeprefix("minari:"))
        if options.json:
            return {"name": options.name, "path": None}
        print(options.name)
        return None
    url, bar = url_of(options.name), _Bar(Display(), options.name)
    try:
        path = fetch(
            options.name, sha256=options.sha256, force=options.force, progress=bar.progress
        )
    finally:
        bar.close()
    if options.json:
        return {"name": options.name, "path": str(path), "url": url, "bytes": path.stat().st_size}
    print(path)
    return None


class _Bar:
    """Progress whose size is known only when the server has answered."""

    def __init__(self, display: Display, label: str) -> None:
        self._display, self._label = display, f"kB of {label}"
        self._work: Work | None = None

    def progress(self, done: int, total: int) -> None:
        """Show `done` of `total` bytes."""
        if self._work is None:
            self._work = self._display.work(self._label, total // 1000)
            self._work.__enter__()
            self._work.start_at(done // 1000)
        self._work.update(done // 1000)

    def close(self) -> None:
        """End the display."""
        if self._work is not None:
            self._work.__exit__(None, None, None)
