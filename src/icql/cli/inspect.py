"""`icql inspect`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from icql.cli.options import Flag, Options, Result
from icql.errors import UserError
from icql.progress import Display
from icql.training.run_folder import RunFolder

if TYPE_CHECKING:
    from icql.inspecting.view import View

NEEDED = "starlette and uvicorn are needed to serve the page."
INSTALL = "pip install 'icql[serve]', or write a file with --out page.html."


@dataclass(frozen=True, kw_only=True)
class Inspect(Options):
    """A page to look at: the map of logged states, and what stands behind each value.

    Click a state to see the logged transitions behind its value, what followed them, what the
    policy would do beside what was done, and whether the alarm rings; choose an episode to see it
    in time. Served on this machine until Ctrl-C, at an address with a token; with --out written as
    one file that needs nothing else, with a sample of the states (docs/evidence.md).
    """

    run: tyro.conf.Positional[Path]
    """Run folder."""
    against: tyro.conf.Positional[Path | None] = None
    """Another run on the same data, to see side by side."""
    out: Path | None = None
    """Write one file instead of serving, e.g. page.html."""
    page: Flag = False
    """Write that file into the run folder: inspect.html, which its README.md links."""
    member: int = 0
    """Which of the seeds and combinations of settings, counted from 0."""
    port: int = 8001
    """Port; 0 for any that is free."""
    dataset: str | None = None
    """Where the data is now, if not where it was when the run was made."""
    rate: float = 0.05
    """The alarm's false alarms: this share of the states of new episodes like the logged ones."""

    def files_written(self) -> Iterable[Path]:
        """The page, where one is written."""
        return self._pages()

    def execute(self) -> Result:
        """Write or serve."""
        runs = [self.run] if self.against is None else [self.run, self.against]
        if self.out is not None:
            return self._write(runs, self.out)
        return (
            self._write(runs, RunFolder.open(self.run).page_path)
            if self.page
            else self._serve(runs)
        )

    def _pages(self) -> Iterable[Path]:
        if self.out is not None:
            return (self.out,)
        return (self.run / "inspect.html",) if self.page and self.run.is_dir() else ()

    def _write(self, runs: list[Path], out: Path) -> Result:
        from icql.inspecting.webpage import check_out, write_page

        check_out(out)
        view = self._view(runs)
        result = write_page(view, out)
        self.say(
            f"{out}: {result['bytes'] / 1e6:.1f} MB, {result['points']:,} of "
            f"{result['transitions']:,} states on the map, evidence of {result['states']:,}, "
            f"{result['episodes']:,} episodes"
        )
        return result

    def _serve(self, runs: list[Path]) -> Result:
        try:
            from icql.inspecting.site import serve_view
            from icql.serving.server import listen
        except ModuleNotFoundError as error:
            raise UserError(NEEDED, where="icql inspect", fix=INSTALL) from error
        listening = listen("127.0.0.1", self.port)  # a port that is taken is told at once
        with listening:
            view = self._view(runs)
            served = serve_view(view, listening, self._begun)
        self.say(f"answered {served.requests:,} requests; refused {served.refused:,}")
        return {"requests": served.requests, "refused": served.refused}

    def _view(self, runs: list[Path]) -> View:
        from icql.inspecting.view import View

        return View(
            runs, dataset=self.dataset, rate=self.rate, display=Display(), member=self.member
        )

    def _begun(self, address: str) -> None:
        print(f"serving {self.run} at {address} (Ctrl-C ends it)", file=sys.stderr, flush=True)
