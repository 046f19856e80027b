"""A clock that is set back, or was ahead: nothing that is stored follows from the time of day."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

import pytest

import icql
import pendulum
from icql import files
from icql.errors import UserError
from icql.files import TEMPORARY, write_json
from icql.locks import held, holder, queued
from icql.training.plan import Plan
from icql.training.run_folder import RunFolder

AHEAD = 4e9  # a day in 2096


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour back at every look."""
    hours = itertools.count(1)
    real = time.time()

    def now() -> float:
        return real - 3600 * next(hours)

    monkeypatch.setattr(time, "time", now)
    monkeypatch.setattr(time, "time_ns", lambda: int(1e9 * now()))


def trained(out: Path, data: Path, steps: int, **given: Any) -> dict[str, Any]:
    run = {"episodes": 1, "log_every": 2, "checkpoint_every": 2, "evaluate_every": 2}
    settings: dict[str, Any] = {"policy.hidden": [8], "batch_size": 8}
    if not given:
        given = {"algo": "bc", "dataset": str(data), "run": run, "settings": settings}
    return icql.train(out=out, steps=steps, quiet=True, **given)


def test_a_run_goes_on_to_the_same_bits(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    pendulum.register()
    data = pendulum.make_data(tmp_path / "pendulum.npz", steps=300)
    whole = trained(tmp_path / "whole", data, steps=6)
    begun = tmp_path / "begun"
    trained(begun, data, steps=2)
    for path in begun.rglob("*"):  # by a machine whose clock was ahead
        os.utime(path, (AHEAD, AHEAD))
    request.getfixturevalue("backwards")
    found = trained(begun, data, steps=6, resume=True)
    assert found["parameter_hash"] == whole["parameter_hash"]
    assert found["score"] == whole["score"]
    rows, wanted = ([(row["kind"], row["step"]) for row in RunFolder.open(run).rows()]
                    for run in (begun, tmp_path / "whole"))  # fmt: skip
    assert sorted(rows) == sorted(wanted)


@pytest.mark.usefixtures("backwards")
def test_locks_are_those_of_the_living(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text('{"pid": 1, "host": "dead"}')
    os.utime(lock, (AHEAD, AHEAD))
    assert holder(lock) is None
    with held(lock) as mine:
        assert mine
        begin = time.monotonic()
        with held(lock) as second:  # it has its patience, and no more
            assert not second
        assert time.monotonic() - begin < 5
    with queued(lock, lambda who: pytest.fail(f"waits for {who}")):
        assert lock.exists()


@pytest.mark.usefixtures("backwards")
def test_temporaries_from_the_future(tmp_path: Path) -> None:
    """Our own are swept whatever their time; what another machine began last is left to it."""
    own, other = (tmp_path / f"{TEMPORARY}{host}-1.npz" for host in (files._host(), "zzzzzz"))
    for path in (own, other):
        path.touch()
        os.utime(path, (AHEAD, AHEAD))
    write_json(tmp_path / "mine.json", 1)
    assert sorted(tmp_path.iterdir()) == sorted([other, tmp_path / "mine.json"])


def test_a_run_named_by_a_second_that_was_before_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda *_: "20260101-000000")
    out = Plan.make("bc", task=None, dataset=None, preset="quick").default_out()
    out.mkdir(parents=True)
    (out / "run.json").write_text("{}")
    with pytest.raises(UserError, match="already exists and is not empty"):
        RunFolder.check_free(Plan.make("bc", task=None, dataset=None, preset="quick").default_out())
