"""Every file of a checkpoint, damaged in turn: what is restored is what was saved, then or before.

Orbax writes them by its own means; our seal, kept beside the arrays, is what is believed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from icql.errors import UserError
from icql.training.checkpoints import Checkpoints

PLAN = "0" * 64


def states(step: int) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    weights = jnp.asarray(rng.normal(size=(40, 30)), jnp.float32)
    return {"weights": weights, "step": jnp.int32(step), "flags": jnp.asarray(rng.random(3) > 0.5)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "checkpoints"
    kept = Checkpoints(path, PLAN)
    for step in (1, 2):
        kept.save(step, states(step))
    kept.close()
    return path


def flipped(path: Path, place: float) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[min(int(place * len(content)), len(content) - 1)] ^= 0x10
    path.write_bytes(bytes(content) or b"x")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "first byte": lambda path: flipped(path, 0.0),
    "middle": lambda path: flipped(path, 0.5),
    "last byte": lambda path: flipped(path, 1.0),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "removed": lambda path: path.unlink(),
}


def same(found: Any, step: int) -> bool:
    pairs = ((np.asarray(found[name]), np.asarray(x)) for name, x in states(step).items())
    return all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in pairs)


@pytest.mark.parametrize("how", DAMAGES)
def test_no_damaged_file_is_believed(whole: Path, tmp_path: Path, how: str, capfd: Any) -> None:
    names = [path.relative_to(whole) for path in sorted(whole.glob("2/**/*")) if path.is_file()]
    assert len(names) > 8
    for name in names:
        place = tmp_path / "checkpoints"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(whole, place)
        DAMAGES[how](place / name)
        told: list[str] = []
        kept = Checkpoints(place, PLAN)
        step, found = kept.newest(states(0), told.append)
        kept.close()
        assert step in (1, 2), f"{name}, {how}"
        assert same(found, step), f"{name}, {how}"
        if (place / "2").is_dir() and step == 1:
            assert "step 2 cannot be restored" in told[0] or not told, f"{name}, {how}"
    assert "Traceback" not in capfd.readouterr().err


def test_where_all_are_damaged_that_is_said(whole: Path, tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    shutil.copytree(whole, place)
    for path in place.glob("*/_CHECKPOINT_METADATA"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match="None is left to go on with"):
        Checkpoints(place, PLAN).newest(states(0), print)
