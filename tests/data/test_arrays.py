"""Arrays in blocks, and sizes of memory."""

from __future__ import annotations

import numpy as np
import pytest

from icql.data.arrays import blocks, groups, moments, pick, read_size, tally
from icql.errors import UserError


def test_sizes() -> None:
    assert read_size("500MB") == 500_000_000
    assert read_size("2GiB") == 2**31
    assert read_size(" 1e9 ") == 10**9
    assert read_size("1.5 kb") == 1500
    assert read_size(7) == 7
    for wrong in ("", "MB", "5 apples", "-3MB", "0", "1e99", "nan", "1.2.3GB"):
        with pytest.raises(UserError, match="is not a size of memory"):
            read_size(wrong)


def test_blocks_cover_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icql.data.arrays.BLOCK", 10)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(57, 3)).astype(np.float32)
    for width, multiple in ((1, 1), (3, 1), (3, 4), (99, 1), (1, 1000)):
        covered = np.concatenate([np.arange(57)[b] for b in blocks(57, width, multiple=multiple)])
        np.testing.assert_array_equal(covered, np.arange(57))
    starts = np.array([0, 3, 4, 30, 31, 50])
    assert [i for group in groups(starts) for i in range(6)[group]] == list(range(6))
    keep = rng.random(57) < 0.4
    first, count = tally(57, lambda rows: keep[rows])
    assert (first, count) == (int(keep.argmax()), int(keep.sum()))
    assert tally(57, lambda rows: keep[rows] & False) == (None, 0)
    rows = np.flatnonzero(keep)
    for most in (1, 5, 100):
        wanted = rows[np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(int)]
        np.testing.assert_array_equal(pick(57, lambda part: keep[part], most), wanted)
    mean, std = moments(values, keep)
    np.testing.assert_allclose(mean, values[keep].mean(0, dtype=np.float64))
    np.testing.assert_allclose(std, values[keep].std(0, dtype=np.float64))
