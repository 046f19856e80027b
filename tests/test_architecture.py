"""The house as docs/architecture.md draws it, held against the imports and a traced run."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import h5py
import numpy as np

import icql

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "icql"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
MOST_FILES = 30  # on a row's way
ONE_NAME = [path for path in SRC.rglob("*.py") if path.relative_to(SRC).parts[0] != "cli"]


def listed(kind: str) -> list[str]:
    found = re.search(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1].splitlines()


def imports(path: Path) -> set[str]:
    """The rooms that a file imports at run time."""
    tree = ast.parse(path.read_text())
    only_typed = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    modules = {
        node.module.split(".")[1]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node not in only_typed
        if node.module and node.module.startswith("icql.")
    }
    return modules


def test_rooms_import_what_the_page_says():
    drawn = {}
    for line in listed("rooms"):
        name, _, rest = line.partition(" ")
        arrow, _, _ = rest.strip().partition(":")
        drawn[name] = set(re.findall(r"\w+", arrow)) if rest.strip().startswith("→") else set()
    found: dict[str, set[str]] = {}
    for path in SRC.rglob("*.py"):
        room = path.relative_to(SRC).parts[0].removesuffix(".py")
        found.setdefault(room, set()).update(imports(path) - {room})
    for hidden in ("__init__", "__main__", "_version"):
        del found[hidden]
    assert found == drawn


def test_nothing_upstream_imports_from_downstream():
    order = [line.split()[0] for line in listed("rooms")]
    for line in listed("rooms"):
        room, _, rest = line.partition(" ")
        for other in re.findall(r"\w+", rest.split(":")[0]) if "→" in rest else []:
            if other != "_version":
                assert order.index(other) < order.index(room), f"{room} imports {other}"


def test_a_row_passes_the_files_that_the_page_lists(tmp_path):
    """Every file of a room that computes in a small run from HDF5 to the last update is listed."""
    way = {line.split()[0] for line in listed("way")}
    assert len(way) <= MOST_FILES
    assert all((SRC / name).is_file() for name in way)
    rng = np.random.default_rng(0)
    rows = 60
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        file["observations"] = rng.normal(size=(rows, 3)).astype(np.float32)
        file["actions"] = rng.uniform(-0.9, 0.9, (rows, 2)).astype(np.float32)
        file["rewards"] = rng.normal(size=rows).astype(np.float32)
        file["terminals"] = np.zeros(rows, bool)
        file["timeouts"] = np.arange(rows) % 20 == 19
    seen = set()

    ours = str(SRC)

    def watch(frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not (code := frame.f_code).co_filename.startswith(ours):
            return
        # class bodies run when a file is imported, before any row has come: functions alone count
        if code.co_flags & 0x2 and not code.co_name.startswith("<"):
            seen.add(Path(code.co_filename).relative_to(SRC).as_posix())

    small = {
        "batch_size": 4,
        "hidden": [4, 4],
        "policy.hidden": [4, 4],
        "context.k": 3,
        "local.layers": 2,
    }
    sys.setprofile(watch)
    try:
        icql.train(
            "icql",
            dataset=str(tmp_path / "log.hdf5"),
            steps=1,
            out=tmp_path / "run",
            settings={**small, "local.features": 4},
            run={"episodes": 0},
            quiet=True,
        )
    finally:
        sys.setprofile(None)
    of_the_row = {"data", "retrieval", "nn", "algos", "losses.py"}
    beside = {
        "algos/presets.py",  # settings, before any row
        "algos/registry.py",
        "nn/initialisation.py",  # fresh networks, before any row too
        "data/pictures.py",  # the run's plots
        "data/download.py",  # where a file could also be
        "data/signals.py",  # what the columns are called
        "data/choices.py",  # not on the way of actions that are real numbers
        "data/formats/bounds.py",  # nor this, of actions in [-1, 1]
        "data/sealed_arrays.py",  # what is kept of the space of contexts
    }
    computed = {name for name in seen if name.split("/")[0] in of_the_row} - beside
    assert computed <= way, sorted(computed - way)
    assert way - seen == set(), sorted(way - seen)


def test_one_name_one_meaning():
    stems = Counter(path.stem for path in ONE_NAME if not path.stem.startswith("__"))
    stems.update(
        path.name for path in SRC.iterdir() if path.is_dir() and path.name != "__pycache__"
    )
    assert [name for name, count in stems.items() if count > 1] == []
    classes = Counter(
        node.name
        for path in ONE_NAME
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in classes.items() if count > 1] == []


def test_the_trainer_asks_no_algorithm_what_it_has():
    """No `hasattr` or `getattr` on algorithms or settings: they say it by protocols."""
    for path in (SRC / "training").glob("*.py"):
        calls = [
            node.func.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]
        assert "hasattr" not in calls, path.name
        assert "getattr" not in calls, path.name


def test_importing_an_algorithm_loads_no_reader_and_no_search():
    import subprocess

    code = "import sys, icql.algos.bc; print([m for m in ('faiss', 'h5py') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_files_need_the_standard_library_only():
    import subprocess

    code = (
        "import sys, icql.files; "
        "print([m for m in ('jax', 'numpy', 'equinox', 'safetensors') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
