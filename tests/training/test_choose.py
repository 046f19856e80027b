"""Without --algo the data decides: which algorithm, and that all that was asked for is kept."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icql
import pendulum
from icql.algos.base import Spec
from icql.algos.registry import make_algorithm
from icql.cli import main
from icql.data.signals import Signals
from icql.data.transitions import DataInfo, Transitions
from icql.errors import UserError
from icql.settings.algorithms import AutoSettings
from icql.training.choose import choose
from icql.training.plan import Plan
from icql.training.run_folder import RunFolder

OWN_LOG = {
    "policy.layer_norm": False,
    "data.normalise_states": True,
    "data.spread": "quartiles",
    "draw.space": "standardised",
}
ASKED = {"batch_size": 8, "policy.hidden": [8, 8], "draw.compared": 8}
RUN = {"episodes": 0, "log_every": 4, "checkpoint_every": 4}


def make(decided: bool, noise: float = 0.0, ends: bool = True) -> Transitions:
    """Twenty episodes in which the state decides the action, each in its way, or does not.

    The last of them ends; the others are cut.
    """
    rng = np.random.default_rng(0)
    s = rng.normal(size=(400, 2)).astype(np.float32)
    ways = np.repeat(rng.normal(size=(20, 2)), 20, 0) * (0.2 if not noise else 0)
    shown = np.tanh(s) + ways + noise * rng.normal(size=(400, 2))
    a = (shown if decided else rng.uniform(-0.9, 0.9, (400, 2))).astype(np.float32)
    return Transitions(
        states=s,
        actions=a,
        rewards=s[:, 0],
        next_states=np.roll(s, -1, 0),
        next_actions=np.roll(a, -1, 0),
        mask=(np.arange(400) < 400 - ends).astype(np.float32),
        episode=np.repeat(np.arange(20), 20).astype(np.int32),
        step=np.tile(np.arange(20), 20).astype(np.int32),
        info=DataInfo("made"),
    )


@pytest.mark.parametrize(
    ("decided", "algo", "words"),
    [(True, "icql-graph", "much the same action"), (False, "icql-rank", "different actions")],
)
@pytest.mark.parametrize("preset", ["quick", "paper", "robust"])
def test_the_spread_of_actions_decides(decided: bool, algo: str, words: str, preset: str) -> None:
    asked = Plan.make(task="hopper-medium-v2", preset=preset)
    assert asked.algo == "auto"
    plan, why = choose(asked, make(decided))
    assert plan == Plan.make(algo, task="hopper-medium-v2", preset=preset)
    assert why.startswith(f"{algo}: similar states saw {words} (spread ")
    assert why.endswith("limit 0.4)")


@pytest.mark.parametrize("preset", ["quick", "paper", "robust"])
def test_where_what_differs_is_noise_and_one_can_fail_whole_episodes_are_compared(
    preset: str,
) -> None:
    asked = Plan.make(task="hopper-medium-v2", preset=preset)
    plan, why = choose(asked, make(True, noise=0.2))
    own = Plan.make("icql-graph", task="hopper-medium-v2", preset=preset)
    draw = replace(own.settings.draw, by="episode", beta=10.0)
    assert plan == replace(own, settings=replace(own.settings, draw=draw))
    assert re.search(r"differs is noise \(-?0\.\d\d of it lasts .*limit 0\.45\).* whole$", why)


@pytest.mark.parametrize("preset", ["quick", "paper", "robust"])
def test_where_what_differs_is_noise_and_nothing_ends_a_critic_learns_from_it(preset: str) -> None:
    asked = Plan.make(task="hopper-medium-v2", preset=preset)
    plan, why = choose(asked, make(True, noise=0.2, ends=False))
    own = Plan.make("icql-rank", task="hopper-medium-v2", preset=preset)
    draw = replace(own.settings.draw, by="uniform")
    wanted = replace(own.settings, draw=draw, q_unit="noise", actor_bc=0.1)
    assert plan == replace(own, settings=wanted)
    assert why.startswith("icql-rank: similar states saw much the same action")
    assert re.search(r"differs is noise \(-?0\.\d\d of it lasts .*nothing ends.* alike$", why)
    assert not plan.without_effect().keys() & {"q_unit", "actor_bc", "draw.by"}


@pytest.mark.parametrize(("ends", "by"), [(True, "episode"), (False, "advantage")])
def test_where_actions_are_choices_episodes_are_compared_if_they_can_fail(
    ends: bool, by: str
) -> None:
    data = make(True, noise=0.2, ends=ends)
    signals = Signals(action=("go=l", "go=r"), categories={"go": ("l", "r")})
    data = replace(data, info=replace(data.info, signals=signals))
    plan, why = choose(Plan.make(task="hopper-medium-v2"), data)
    assert (plan.algo, plan.settings.draw.by) == ("icql-graph", by)
    assert ("whole" in why) == ends


@pytest.mark.parametrize("ends", [True, False])
def test_where_ways_last_steps_are_compared(ends: bool) -> None:
    plan, why = choose(Plan.make(task="hopper-medium-v2"), make(True, ends=ends))
    assert plan == Plan.make("icql-graph", task="hopper-medium-v2")
    assert why.endswith("limit 0.4)")


@pytest.mark.parametrize("name", ["draw.by", "draw.beta"])
def test_how_rows_are_drawn_is_not_mixed_with_what_was_asked_for(name: str) -> None:
    given: Any = {"draw.by": "rank", "draw.beta": 3.0}[name]
    asked = Plan.make(task="hopper-medium-v2").asked(settings={name: given})
    plan, why = choose(asked, make(True, noise=0.2))
    own = Plan.make("icql-graph", task="hopper-medium-v2").asked(settings={name: given})
    assert plan.settings.draw == own.settings.draw
    assert "whole" not in why  # nothing is said that is not done


@pytest.mark.parametrize("decided", [True, False])
def test_what_was_asked_for_is_kept_and_the_rest_is_the_algorithms_own(decided: bool) -> None:
    asked = Plan.make(dataset="some.npz").asked(
        seed=3,
        seeds=2,
        grid={"policy.learning_rate": [1e-3, 1e-4]},
        settings={
            "batch_size": 8,
            "policy.hidden": [9],
            "draw.by": "top",
            "data.reward_scale": 2.0,
        },
        run={"steps": 70, "episodes": 0},
    )
    plan, _ = choose(asked, make(decided))
    own = Plan.make(plan.algo, dataset="some.npz")
    s = own.settings
    assert plan.settings == replace(
        s,
        batch_size=8,
        policy=replace(s.policy, hidden=(9,)),
        draw=replace(s.draw, by="top"),
        data=replace(s.data, reward_scale=2.0),
    )
    assert plan.run == replace(own.run, steps=70, episodes=0)
    assert (plan.seeds, plan.grid) == ((3, 4), {"policy.learning_rate": (1e-3, 1e-4)})
    assert plan.sources == own.sources
    assert s.policy.cosine
    assert own.run.steps != 1_000_000  # what auto would say


def test_what_was_given_is_kept_even_where_it_is_the_default_of_auto() -> None:
    asked = Plan.make(dataset="some.npz")
    assert (asked.run.steps, asked.settings.policy.cosine) == (1_000_000, False)
    plan, _ = choose(asked, make(True), given={"steps", "policy.cosine", "algo"})
    assert (plan.run.steps, plan.settings.policy.cosine) == (1_000_000, False)
    assert plan.settings.policy.layer_norm  # which nobody spoke of


@pytest.mark.parametrize("way", ["command line", "library"])
def test_names_of_what_was_given_come_along(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}

    def stop(plan: Plan, **more: Any) -> None:
        told.update(more)
        raise UserError("enough.")

    monkeypatch.setattr("icql.training.trainer.run_training", stop)
    if way == "library":
        with pytest.raises(UserError, match="enough"):
            icql.train(steps=1_000_000, settings={"policy.cosine": False}, run={"episodes": 10})
    else:
        options = ["--steps=1000000", "--policy.no-cosine", "--episodes", "10"]
        assert main(["train", *options]) == 2
    assert set(told["given"]) == {"steps", "policy.cosine", "episodes"}


def test_auto_is_not_made_before_there_is_data() -> None:
    with pytest.raises(UserError, match=r"--algo auto: is chosen once there is data.*Name the"):
        make_algorithm("auto", AutoSettings(), Spec(3, 2, 10))


def test_auto_has_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "speed", "--algos", "auto", "--rows", "1000"]) == 2
    err = capsys.readouterr().err
    assert "chosen once there is data" in err
    assert "Traceback" not in err


# --- A whole run ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A controller without noise: where states are alike, so are actions."""
    path = tmp_path_factory.mktemp("data") / "pendulum.npz"
    arrays = dict(np.load(pendulum.make_data(path, steps=400, noise=0.0)))
    arrays["rewards"] -= np.abs(arrays["observations"]).sum(1)  # which would be 1 everywhere
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="module")
def chosen(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return icql.train(
        dataset=str(data),
        steps=8,
        seeds=2,
        out=tmp_path_factory.mktemp("runs") / "chosen",
        settings=ASKED,
        run=RUN,
        quiet=True,
    )


def test_the_run_is_that_of_the_algorithm_chosen(chosen: dict[str, Any], data: Path) -> None:
    plan = Plan.read(RunFolder.open(chosen["run"]))
    expected = Plan.make("icql-graph", dataset=str(data)).asked(
        seeds=2, settings={**ASKED, **OWN_LOG}, run={**RUN, "steps": 8}
    )
    assert plan == expected
    assert chosen["algo"] == "icql-graph"
    assert icql.load_policy(chosen["run"]).act(np.zeros(4)).shape == (1,)


def test_it_says_what_it_chose_and_how_rows_are_drawn(
    data: Path, chosen: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "said"
    options = ["--batch-size", "8", "--policy.hidden", "8", "8", "--draw.compared", "8"]
    options += ["--steps", "8", "--episodes", "0", "--log-every", "4", "--checkpoint-every", "4"]
    where = ["--dataset", str(data), "--out", str(out), "--seeds", "2"]
    assert main(["train", *where, *options, "--json"]) == 0
    printed, said = capsys.readouterr()
    result = json.loads(printed)
    assert "algorithm: icql-graph: similar states saw much the same action" in said
    share = f"of the rows {100 * result['draw']['effective_share']:.1f} %"
    line = f"draws: by advantage among 8 similar states of other episodes; effective share {share}"
    assert line in said
    assert "policy: no LayerNorm, as for any log of one's own (--policy.layer-norm)" in said
    assert result["draw"]["compared"] == 8
    assert 0 < result["draw"]["effective_share"] < 1
    # the command line's run is the library's
    assert result["parameter_hash"] == chosen["parameter_hash"]
    assert json.loads((out / "result.json").read_text())["draw"] == chosen["draw"]
    assert json.loads((out / "run.json").read_text())["algo"] == "icql-graph"


@pytest.mark.parametrize("algo", [None, "icql-graph"])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    chosen: dict[str, Any], tmp_path: Path, algo: str | None
) -> None:
    """As after a kill: the last checkpoint and the result are not there."""
    out = tmp_path / "stopped"
    shutil.copytree(chosen["run"], out)
    shutil.rmtree(out / "checkpoints" / "8")
    (out / "result.json").unlink()
    resumed = icql.train(algo, resume=True, out=out, quiet=True)
    assert resumed["parameter_hash"] == chosen["parameter_hash"]
    assert resumed["draw"] == chosen["draw"]
    assert resumed["algo"] == "icql-graph"


def test_another_algorithm_is_no_resumption(chosen: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="--algo: the run was started with icql-graph, not icql-r"):
        icql.train("icql-rank", resume=True, out=chosen["run"], quiet=True)
