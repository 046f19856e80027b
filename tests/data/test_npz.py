"""Our own file format: what is written reads back, and what cannot be trusted is refused."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import zipfile
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from data.log_cases import log, rows_of, successors
from icql.data import Transitions, load_dataset
from icql.data.formats.npz import read_npz, write_npz
from icql.errors import UserError


@pytest.mark.parametrize("recorded", [True, False])
def test_npz_round_trip(tmp_path: pathlib.Path, recorded: bool) -> None:
    steps = log(9, terminals=[2, 8], timeouts=[5])
    if recorded:
        steps = replace(steps, next_observations=successors(steps))
    steps = replace(steps, valid=np.arange(9) != 4)
    path = tmp_path / "new" / "log.npz"
    write_npz(path, steps, {"task": "hopper-mini", "who": "é"})
    back, meta = read_npz(path)
    assert meta == {"task": "hopper-mini", "who": "é"}
    for name in ("observations", "actions", "rewards", "terminals", "timeouts", "valid"):
        assert_array_equal(getattr(back, name), getattr(steps, name))
    data = load_dataset(path)
    assert data.content_hash() == Transitions.from_steps(steps).content_hash()
    assert data.info.task == "hopper-mini"
    assert list(path.parent.iterdir()) == [path]  # no temporary file stays behind


def test_npz_of_ones_own_may_record_every_successor(tmp_path: pathlib.Path) -> None:
    steps = log(6, terminals=[2], timeouts=[5])
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    arrays = {name: getattr(steps, name) for name in names}
    following = np.vstack([steps.observations[1:], steps.observations[:1]]) + 0.5
    np.savez(tmp_path / "log.npz", **arrays, next_observations=following)
    data = load_dataset(tmp_path / "log.npz")
    np.testing.assert_array_equal(data.next_states, following[[0, 1, 2, 3, 4]].astype(np.float32))
    np.savez(
        tmp_path / "two.npz", **arrays, next_observations=following, final_observations=following
    )
    with pytest.raises(UserError, match="both `next_observations` and `final_observations`"):
        load_dataset(tmp_path / "two.npz")


def test_npz_of_a_log_that_stops_inside_an_episode(tmp_path: pathlib.Path) -> None:
    steps = log(5, terminals=[1])
    steps = replace(steps, next_observations=successors(steps))
    write_npz(tmp_path / "log.npz", steps)
    data = load_dataset(tmp_path / "log.npz")
    assert rows_of(data) == [0, 1, 2, 3]
    assert_array_equal(data.next_states[:, 0], [1, 1000, 3, 4])


def test_npz_keeps_d4rls_last_row_rule(tmp_path: pathlib.Path) -> None:
    steps = log(5, terminals=[4], drop_last=True)
    write_npz(tmp_path / "log.npz", replace(steps, next_observations=successors(steps)))
    assert rows_of(load_dataset(tmp_path / "log.npz")) == [0, 1, 2, 3]


def test_npz_bytes_are_the_same_every_time(tmp_path: pathlib.Path) -> None:
    steps = log(9, terminals=[2], timeouts=[8])
    write_npz(tmp_path / "a.npz", steps, {"b": 1, "a": 2})
    write_npz(tmp_path / "b.npz", steps, {"a": 2, "b": 1})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        assert {member.date_time[0] for member in archive.infolist()} == {1980}


def test_npz_refuses_to_write_what_it_cannot_hold(tmp_path: pathlib.Path) -> None:
    steps = log(5, terminals=[4])
    jump = replace(steps, next_observations=np.full_like(steps.observations, 7))
    with pytest.raises(UserError, match="next observation of row 0 is not row 1"):
        write_npz(tmp_path / "log.npz", jump)
    with pytest.raises(TypeError):
        write_npz(tmp_path / "log.npz", steps, {"not": object()})
    assert list(tmp_path.iterdir()) == []


class Trap:
    def __reduce__(self) -> Any:
        return os.mkdir, ("sprung",)


def test_npz_with_pickles_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arrays = {n: getattr(log(3, timeouts=[2]), n) for n in ("observations", "actions", "rewards")}
    trap = np.array([Trap(), None, None])
    np.savez("log.npz", **arrays, terminals=trap, timeouts=np.ones(3))
    with pytest.raises(UserError, match=r"log\.npz: `terminals` holds values of type object"):
        load_dataset("log.npz")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": None}, "`rewards` is missing; it has actions, meta"),
        ({"final_observations": np.zeros((5, 2))}, r"`final_observations` has shape \(5, 2\)"),
        ({"meta": np.frombuffer(b"{", np.uint8)}, "`meta` is not JSON"),
        ({"meta": np.frombuffer(b"[]", np.uint8)}, "`meta` is not a JSON object"),
        ({"actions": np.full((6, 1), np.inf)}, "`actions` is not a finite number at row 0"),
    ],
)
def test_bad_npz_is_named(tmp_path: pathlib.Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "log.npz"
    write_npz(path, log(6, terminals=[2], timeouts=[5]))
    with np.load(path, allow_pickle=False) as file:
        arrays = {**file, **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(UserError, match=f"log.npz: {message}"):
        load_dataset(path)


def test_npz_header_that_claims_too_much(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.npz"
    steps = log(6, terminals=[2], timeouts=[5])
    np.savez(path, **{n: getattr(steps, n) for n in ("actions", "rewards", "terminals")})
    with zipfile.ZipFile(path, "a") as archive:
        for name, shape in {"observations": (10**9, 10**3), "timeouts": (6,)}.items():
            header = json.dumps({"descr": "<f4", "fortran_order": False, "shape": "S"})
            header = header.replace('"S"', str(shape)).replace("false", "False").ljust(117) + "\n"
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00v\x00" + header.encode() + bytes(24))
    with pytest.raises(UserError, match="`observations` does not have the size its header claims"):
        load_dataset(path)


def test_npz_that_unpacks_to_more_than_memory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.npz"
    steps = log(100_000, timeouts=[99_999])
    write_npz(path, replace(steps, observations=np.zeros((100_000, 100))))
    assert path.stat().st_size < 1_000_000
    monkeypatch.setattr("icql.data.arrays.memory_limit", lambda: 10_000_000)
    with pytest.raises(UserError, match=r"log.npz: its arrays need .* over the limit of 0.0 GB"):
        load_dataset(path)


@given(st.data())
def test_damaged_npz_gives_data_or_a_message(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.npz"
    write_npz(path, log(6, terminals=[2], timeouts=[5]))
    content = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=5)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with contextlib.suppress(UserError):
        assert len(load_dataset(path)) > 0


def packed(path: pathlib.Path, name: str, content: Any) -> None:
    """A log whose array `name` is replaced by other bytes, well compressed."""
    steps = log(6, terminals=[2], timeouts=[5])
    write_npz(path, steps)
    with zipfile.ZipFile(path) as old:
        members = {each: old.read(each) for each in old.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for each, before in members.items():
            new.writestr(each, content if each == f"{name}.npy" else before)


def test_a_header_without_end_is_not_unpacked(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 2**25
    content = b"\x93NUMPY\x02\x00" + size.to_bytes(4, "little") + b" " * size
    packed(tmp_path / "log.npz", "actions", content)
    read, most = zipfile.ZipExtFile.read, 0

    def watched(self: Any, n: int | None = -1) -> bytes:
        nonlocal most
        found = read(self, n)
        most = max(most, len(found))
        return found

    monkeypatch.setattr(zipfile.ZipExtFile, "read", watched)
    with pytest.raises(UserError, match="cannot be read as NPZ"):
        read_npz(tmp_path / "log.npz")
    assert most <= 2**16


def test_a_description_without_end_is_refused(tmp_path: pathlib.Path) -> None:
    with (tmp_path / "meta.npy").open("wb") as file:
        np.save(file, np.full(2**25, ord(" "), np.uint8))
    packed(tmp_path / "log.npz", "meta", (tmp_path / "meta.npy").read_bytes())
    with pytest.raises(UserError, match=r"`meta` is too large|more than any compression"):
        read_npz(tmp_path / "log.npz")


def test_a_description_nested_without_end_is_refused(tmp_path: pathlib.Path) -> None:
    with (tmp_path / "meta.npy").open("wb") as file:
        np.save(file, np.frombuffer(b"[" * 200_000, np.uint8))
    packed(tmp_path / "log.npz", "meta", (tmp_path / "meta.npy").read_bytes())
    with pytest.raises(UserError, match="`meta` is not JSON"):
        read_npz(tmp_path / "log.npz")
