"""Callbacks are told the beginning, every number and the end; trackers only where asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import icql
import pendulum
from icql.cli.main import main
from icql.training.callbacks import Begun, Tracker

SMALL: dict[str, Any] = {"policy.hidden": [4], "batch_size": 8}
RUN: dict[str, Any] = {"episodes": 0, "log_every": 2, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    pendulum.register()
    return str(pendulum.make_data(tmp_path_factory.mktemp("data") / "pendulum.npz", steps=300))


class Listener(icql.Callback):
    def __init__(self, stop_at: int = -1) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.stop_at = stop_at

    def on_start(self, begun: Begun) -> None:
        self.told.append(("start", begun.step, begun.plan["algo"], begun.folder))

    def on_metrics(self, step: int, metrics: Any) -> None:
        self.told.append(("metrics", step, dict(metrics)))
        if step == self.stop_at:
            raise KeyboardInterrupt

    def on_end(self, result: Any) -> None:
        self.told.append(("end", result))


def test_what_a_callback_is_told(data: str, tmp_path: Path) -> None:
    heard, out = Listener(), tmp_path / "run"
    result = icql.train(
        "bc",
        dataset=data,
        steps=4,
        seeds=2,
        out=out,
        settings=SMALL,
        run=RUN,
        callbacks=[heard],
        quiet=True,
    )
    kinds = [one[0] for one in heard.told]
    assert (kinds[0], kinds[-1]) == ("start", "end")
    assert heard.told[0] == ("start", 0, "bc", out)
    assert heard.told[-1] == ("end", result)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    trained = [one for one in heard.told[1:-1] if next(iter(one[2])).startswith("train/")]
    for row, (_, step, metrics) in zip(
        [r for r in rows if r["kind"] == "train"], trained, strict=True
    ):
        assert step == row["step"]
        names = [name for name in row if isinstance(row[name], list)]
        assert len(metrics) == 2 * len(names)
        np.testing.assert_allclose(metrics[f"train/{names[0]}/seed1"], row[names[0]][1])
    assert list((out / "tensorboard").iterdir())  # as ever


def test_a_run_that_is_stopped_ends_without_a_result_and_is_told_where_it_goes_on(
    data: str, tmp_path: Path
) -> None:
    out, first, second = tmp_path / "run", Listener(stop_at=4), Listener()
    given: dict[str, Any] = {"dataset": data, "out": out, "settings": SMALL, "run": RUN}
    with pytest.raises(KeyboardInterrupt):
        icql.train("bc", steps=6, callbacks=[first], quiet=True, **given)
    assert first.told[-1] == ("end", None)
    result = icql.train(out=out, resume=True, callbacks=[second], quiet=True)
    assert second.told[0][1] in (2, 4)  # the last that was saved
    assert second.told[-1] == ("end", result)


class Service(ModuleType):
    """What wandb and trackio have in common; remembers how it was called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, Any, Any]] = []

    def init(self, **how: Any) -> None:
        self.calls.append(("init", how, None))

    def log(self, metrics: Any, step: int) -> None:
        self.calls.append(("log", metrics, step))

    def finish(self) -> None:
        self.calls.append(("finish", None, None))


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_trackers_by_the_command_line(
    data: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(name)
    monkeypatch.setitem(sys.modules, name, service)
    out = tmp_path / "a run"
    small = ["--policy.hidden", "4", "--batch-size", "8", "--episodes", "0", "--log-every", "1"]
    where = ["--dataset", data, "--out", str(out), "--log", name]
    assert main(["train", "--algo", "bc", "--steps", "2", *where, *small]) == 0
    kinds = [kind for kind, _, _ in service.calls]
    assert kinds == ["init", *["log"] * (len(kinds) - 2), "finish"]
    how = service.calls[0][1]
    assert (how["project"], how["name"], how["config"]["algo"]) == ("icql", "a run", "bc")
    assert ("id" in how) == (name == "wandb")
    assert {step for kind, _, step in service.calls if kind == "log"} == {1, 2}
    assert all(isinstance(x, float) for x in service.calls[1][1].values())
    service.calls.clear()
    tracker = Tracker(name, project="mine")
    tracker.on_start(Begun(out, {"algo": "bc"}, 0))
    assert service.calls[0][1]["project"] == "mine"


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_that_is_not_installed(
    data: str,
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    out = tmp_path / "run"
    assert main(["train", "--dataset", data, "--out", str(out), "--log", name]) == 2
    said = capsys.readouterr().err
    assert f"{name} is not installed" in said
    assert f"icql[{name}]" in said
    assert not out.exists()
