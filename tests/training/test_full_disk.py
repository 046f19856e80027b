"""A disk that is full while a run is kept: one sentence, nothing that hangs, nothing lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files are limited in this way")
LIMITED = """\
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, -1))
folder = Path({folder!r})
"""
BOARD = """\
from icql.training.callbacks import Begun, TensorBoard
board = TensorBoard()
board.on_start(Begun(folder, {}, 0))
for step in range(200):
    board.on_metrics(step, {"train/loss/seed0": 1.0})
board.on_end(None)
"""
CHECKPOINTS = """\
import numpy as np
from icql.errors import UserError
from icql.training.checkpoints import Checkpoints
kept = Checkpoints(folder / "checkpoints")
states = {str(i): np.random.default_rng(i).normal(size=2000) for i in range(6)}
try:
    for step in (1, 2):
        kept.save(step, states)
    kept.close()
except UserError as error:
    print(error)
"""


def ended(script: str, folder: Path, size: int) -> subprocess.CompletedProcess[str]:
    """A process whose files may not get larger than `size` bytes."""
    code = LIMITED.format(size=size, folder=str(folder)) + script
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )


def test_tensorboard_is_left_out_and_nobody_waits_for_it(tmp_path: Path) -> None:
    """The thread of tensorboardX died of it; the run then waited for room in its queue."""
    done = ended(BOARD, tmp_path, 2000)
    assert done.stdout == (
        f"warning: {tmp_path}/tensorboard: cannot be written (File too large); metrics.jsonl has "
        "the same.\n"
    )
    assert done.stderr == ""


@pytest.mark.parametrize("size", [300, 5000, 20_000])
def test_checkpoints_are_one_sentence(tmp_path: Path, size: int) -> None:
    done = ended(CHECKPOINTS, tmp_path, size)
    assert done.stdout.count("cannot be written (") == 1
    assert "Traceback" not in done.stderr
