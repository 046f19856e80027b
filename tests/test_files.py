"""Files: what cannot be written is known before, and what cannot be read is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icql.errors import UserError
from icql.files import check_writable, read_json


def test_trying_a_folder_leaves_nothing(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    check_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_found_by_trying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(UserError, match=r"cannot be written to \(No space left on device\)"):
        check_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"\xff", b"{", b"[" * 200_000])
def test_what_is_no_json_is_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.json: is not valid JSON"):
        read_json(tmp_path / "x.json")
