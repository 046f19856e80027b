"""How long a click on the page of `icql inspect` waits, and how long the page as a file opens.

    python benchmarks/inspect_click.py                               # served, a million states
    python benchmarks/inspect_click.py --rows 135814 --columns 60 --file   # of kitchen's size
    python benchmarks/inspect_click.py --dataset kitchen-mixed-v0 --file

The states are noisy gaits in episodes of 1,000 steps (`retrieval_speed.py`), or --walks. The run
has made one update: what its networks say does not matter here, nor do the contexts it was trained
on, which are drawn at random to save their search; those of a click are searched for. A click is
timed over HTTP and, where there is a Chromium, in it: from the click until its state is shown.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from numpy.typing import NDArray

import icql
from icql.data.formats.npz import write_npz
from icql.data.transitions import Steps, Transitions
from icql.retrieval.cache import Neighbours, SearchReport
from icql.settings.contexts import ContextSettings
from icql.training import trainer
from retrieval_speed import gaits

SMALL = {"batch_size": 16, "hidden": [64, 64], "policy.hidden": [64, 64]}
OPENED = 5  # times that the file is opened


@dataclass(frozen=True)
class Options:
    """What to measure."""

    rows: int = 1_000_000
    columns: int = 17
    dataset: str | None = None
    """Data that exists, instead of made-up data."""
    walks: bool = False
    """Random walks in all directions instead of gaits: much farther from one another."""
    algo: str = "icql"
    clicks: int = 50
    file: bool = False
    """Measure the page as one file instead of the served one."""
    page: Path | None = None
    """Keep the file here."""
    picture: Path | None = None
    """Write a picture of the page here."""


def main() -> None:
    asked = tyro.cli(Options)
    vars(trainer)["build_neighbours"] = any_rows
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        data = asked.dataset or str(make_log(folder / "log.npz", asked))
        begin = time.perf_counter()
        icql.train(
            asked.algo,
            dataset=data,
            steps=1,
            out=folder / "run",
            settings=SMALL,
            run={"episodes": 0},
            quiet=True,
        )
        told: dict[str, Any] = {"train_s": round(time.perf_counter() - begin, 1)}
        told |= of_file(folder, asked) if asked.file else of_served(folder, asked)
    print(json.dumps(told))


def make_log(path: Path, asked: Options) -> Path:
    """Made-up states with three actions and a reward."""
    rng, length = np.random.default_rng(0), 200 if asked.walks else 1000
    if asked.walks:
        steps = rng.normal(size=(asked.rows // length, length, asked.columns)).astype(np.float32)
        states = np.cumsum(0.3 * steps, axis=1).reshape(-1, asked.columns)
    else:
        states = gaits(asked.rows, asked.columns, 0.1).states
    ends = np.arange(len(states)) % length == length - 1
    actions = rng.uniform(-1, 1, (len(states), 3)).astype(np.float32)
    write_npz(path, Steps(states, actions, states[:, 0].copy(), np.zeros_like(ends), ends))
    return path


def any_rows(data: Transitions, settings: ContextSettings, **_: Any) -> Neighbours:
    """Tables of contexts without a search."""
    rng, shape = np.random.default_rng(0), (len(data), settings.k)
    first, second = (rng.integers(len(data), size=shape, dtype=np.int32) for _ in range(2))
    return Neighbours(first, second, SearchReport("random", len(data), 2 * len(data)))


def of_served(folder: Path, asked: Options) -> dict[str, Any]:
    """The served page: how long it prepares, and what a click takes."""
    begin = time.perf_counter()
    with served(folder / "run") as address:
        told: dict[str, Any] = {"ready_s": round(time.perf_counter() - begin, 1)}
        with urllib.request.urlopen(address) as answer:
            head = answer.read().decode()
        told["page_mb"] = round(len(head) / 1e6, 2)
        found = re.search(r'"transitions": ?(\d+)', head)
        told["rows"] = rows = int(found[1]) if found else asked.rows
        clicks, pasted = [], []
        for row in np.random.default_rng(1).integers(rows, size=asked.clicks):
            begin = time.perf_counter()
            with urllib.request.urlopen(f"{address}row/{row}") as answer:
                state = np.array(json.load(answer)["shared"]["state"])
            clicks.append(time.perf_counter() - begin)
            body = json.dumps({"states": [(state + 0.01).tolist()]}).encode()
            kind = {"content-type": "application/json"}
            request = urllib.request.Request(f"{address}state", body, kind)
            begin = time.perf_counter()
            urllib.request.urlopen(request).read()
            pasted.append(time.perf_counter() - begin)
        told |= {"click_ms": milliseconds(clicks), "pasted_ms": milliseconds(pasted)}
        with chromium(folder) as page:
            if page is not None:
                page.open(address)
                time.sleep(2)
                shown = [clicked(page, at) for at in spots(asked.clicks)]
                told["shown_ms"] = milliseconds([x for x in shown if x is not None])
                picture(page, asked.picture)
    return told


def of_file(folder: Path, asked: Options) -> dict[str, Any]:
    """The page as one file: how large, and how long until it is drawn."""
    out = asked.page or folder / "page.html"
    begin = time.perf_counter()
    made = icql.inspect(folder / "run", out=out, quiet=True)
    told: dict[str, Any] = {"written_s": round(time.perf_counter() - begin, 1)}
    told |= {**made, "page": out.name, "mb": round(made["bytes"] / 1e6, 2)}
    with chromium(folder) as page:
        if page is not None:
            opened = []
            for _ in range(OPENED):
                page.open("about:blank")
                begin = time.perf_counter()
                page.open(out.absolute().as_uri())
                while not page.run("return document.querySelector('.alarm') !== null"):
                    time.sleep(0.01)
                opened.append(time.perf_counter() - begin)
            told["opened_ms"] = milliseconds(opened)
            shown = [clicked(page, at) for at in spots(asked.clicks)]
            told["shown_ms"] = milliseconds([x for x in shown if x is not None])
            picture(page, asked.picture)
    return told


@contextmanager
def served(run: Path) -> Iterator[str]:
    """`icql inspect` on a free port; gives its address, token included."""
    command = [sys.executable, "-m", "icql", "inspect", str(run), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"http://\S+", line):
                yield found[0]
                break
        else:
            raise SystemExit("".join(said))
    finally:
        process.terminate()
        process.wait()


@contextmanager
def chromium(folder: Path) -> Iterator[Any]:
    """A window of a browser, as the tests drive it; None where there is none."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    browser = importlib.import_module("browser")
    if not browser.installed():
        yield None
        return
    with browser.browser(folder / "profile") as page:
        yield page


def spots(count: int) -> NDArray[np.float64]:
    """Places on the map, as shares of its width and height."""
    return np.random.default_rng(2).uniform(0.3, 0.7, (count, 2))


CLICK = """
const title = () => [...document.querySelectorAll('h2')].map(h => h.textContent).join();
const m = document.querySelector('canvas.map'), b = m.getBoundingClientRect(), before = title();
const begin = performance.now(); window.took = null;
const watch = new MutationObserver(() => { if (title() !== before && window.took === null) {
  requestAnimationFrame(() => setTimeout(() => { window.took = performance.now() - begin; }));
  watch.disconnect(); } });
watch.observe(document.body, {childList: true, subtree: true, characterData: true});
m.dispatchEvent(new MouseEvent('click',
  {clientX: b.left + AT_X * b.width, clientY: b.top + AT_Y * b.height}));
"""


def clicked(page: Any, at: NDArray[np.float64]) -> float | None:
    """Seconds from a click on the map until its state is shown; None: it was shown already."""
    page.run(CLICK.replace("AT_X", str(at[0])).replace("AT_Y", str(at[1])))
    for _ in range(100):
        took = page.run("return window.took")
        if took is not None:
            return float(took) / 1e3
        time.sleep(0.02)
    return None


def picture(page: Any, path: Path | None) -> None:
    """A picture of the page."""
    if path is not None:
        path.write_bytes(page.picture())


def milliseconds(seconds: list[float]) -> dict[str, float]:
    """Median, 95th percentile and the longest."""
    names = {"median": 0.5, "p95": 0.95, "max": 1.0}
    return {name: round(1e3 * float(np.quantile(seconds, q)), 1) for name, q in names.items()}


if __name__ == "__main__":
    main()
