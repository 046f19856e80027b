"""Parsing and help wait for nothing that training needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("jax", "equinox", "optax", "orbax", "matplotlib", "h5py", "faiss", "gymnasium")
CHECK = """
import sys
from icql.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
sys.stderr.write(" ".join(name for name in %r if name in sys.modules))
"""


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "train --help",
        "train --preset robust --help",
        "train --algo icql-graph --task kitchen-partial-v0 --help",
        "train --algo dt --grid learning-rate=1e-4 --help",
        "evaluate --help",
        "judge --help",
        "select --help",
        "inspect --help",
        "export --help",
        "serve --help",
        "algos",
        "data --help",
        "data list --help",
        "data show --help",
        "data init --help",
        "data validate --help",
        "data coverage --help",
        "data convert --help",
        "data fetch --help",
        "data collect --help",
        "bench --help",
        "bench list",
        "bench run --help",
        "bench status --help",
        "bench report --help",
        "bench speed --help",
        "bench cost --help",
    ],
)
def test_help_imports_nothing_heavy(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHECK % (HEAVY,), *command.split()], capture_output=True, text=True
    )
    assert done.stderr == ""
    assert "usage" in done.stdout or "icql" in done.stdout
