"""Presets: official settings where there are any, and `robust`, the same policy for all."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from icql.algos.presets import PRESETS, presets_of, resolve_preset
from icql.algos.registry import algorithms
from icql.data.tasks import list_tasks
from icql.errors import UserError
from icql.settings.change import leaves, override
from icql.settings.shared import ActorSettings, PolicySettings

WITHOUT = ("dt", "radt", "sac")
WITH = [name for name in algorithms() if name not in WITHOUT]
TASKS = [None, *list_tasks()]


def test_who_has_which_presets() -> None:
    assert {name: presets_of(name) for name in algorithms()} == {
        **dict.fromkeys(WITH, PRESETS),
        **dict.fromkeys(WITHOUT, ("quick", "paper")),
    }


@pytest.mark.parametrize("task", TASKS)
def test_every_method_gets_the_same_policy(task: str | None) -> None:
    policies = {name: resolve_preset(name, "robust", task).settings.policy for name in WITH}
    few = task is not None and task.startswith(("kitchen", "pen", "hammer", "door"))
    expected = PolicySettings(
        hidden=(512, 512) if few else (256, 256),
        networks=8 if few and not task.startswith("kitchen") else 1,
        layer_norm=True,
        dropout=0.1 if few else 0.0,
        init="small" if few else "orthogonal",
        learning_rate=3e-4,
        cosine=True,
    )
    assert {name: policy for name, policy in policies.items() if policy != expected} == {}


@pytest.mark.parametrize("name", WITH)
def test_all_else_is_as_in_the_paper(name: str) -> None:
    def rest(settings: Any) -> Any:
        assert isinstance(settings, ActorSettings)
        return dataclasses.replace(settings, policy=PolicySettings())

    for task in TASKS:
        robust, paper = (resolve_preset(name, preset, task) for preset in ("robust", "paper"))
        expected = paper.settings
        if task is not None and task.startswith(("hopper", "walker2d", "halfcheetah")):
            same = {"data.normalise_states": True, "data.spread": "deviation"}
            expected = override(expected, same)
        if task is not None and task.startswith("kitchen"):
            expected = override(expected, {"data.corrective": 0.3})
        if task is not None and task.startswith(("door", "hammer")):
            expected = override(expected, {"data.lead": 5})
        assert rest(robust.settings) == rest(expected)
        assert robust.sources[: len(paper.sources)] == paper.sources
        assert len(robust.sources) > len(paper.sources)
        assert robust.run == resolve_preset("bc", "robust", task).run


# numbers of the authors' configurations: algorithm, task (None: the code's own defaults), settings
OFFICIAL: list[tuple[str, str | None, dict[str, Any]]] = [
    # ReBRAC, src/algorithms/rebrac.py, Config; configs/rebrac/{halfcheetah,pen}
    ("rebrac", None, {"actor_bc": 1.0, "critic_bc": 1.0, "batch_size": 1024}),
    ("rebrac", None, {"critic_learning_rate": 1e-3, "policy.learning_rate": 1e-3}),
    ("rebrac", None, {"hidden": (256,) * 3, "policy.hidden": (256,) * 3, "layer_norm": True}),
    ("rebrac", "halfcheetah-medium-v2", {"actor_bc": 0.001, "critic_bc": 0.01}),
    ("rebrac", "pen-human-v1", {"actor_bc": 0.1, "critic_bc": 0.5, "batch_size": 256}),
    # DMG, train_offline.py: temp 3 and expectile 0.7 outside AntMaze, at most 3, nu 0.1 or 0.5
    ("dmg", None, {"beta": 3.0, "expectile": 0.7, "advantage_limit": 3.0, "mixture": 0.25}),
    ("dmg", "hopper-medium-v2", {"beta": 3.0, "penalty": 0.1, "data.spread": "plain"}),
    ("dmg", "door-human-v1", {"beta": 3.0, "penalty": 0.5}),
    ("dmg", "kitchen-complete-v0", {"beta": 3.0, "penalty": 0.5}),
    # TD3_BC, main.py and utils.py
    ("td3bc", "hopper-medium-v2", {"data.normalise_states": True, "data.spread": "plain"}),
    ("td3bc", "hopper-medium-v2", {"alpha": 2.5, "critic_learning_rate": 3e-4}),
    # decision-transformer, gym/experiment.py; CORL, configs/offline/dt/pen/human_v1.yaml
    ("dt", "hopper-medium-v2", {"batch_size": 64, "learning_rate": 1e-4, "warmup": 10_000}),
    ("dt", "pen-human-v1", {"batch_size": 4096, "learning_rate": 8e-4, "return_scale": 1.0}),
    ("dt", "door-cloned-v1", {"batch_size": 4096, "target_return": 2900.0}),
    ("radt", "pen-human-v1", {"batch_size": 64, "learning_rate": 1e-4, "target_return": 3100.0}),
    # CORL, configs/offline/cql/{hopper,pen}
    ("cql", "halfcheetah-medium-v2", {"alpha": 10.0, "policy.learning_rate": 3e-5}),
    ("cql", "hopper-medium-v2", {"importance_sampling": True, "max_backup": False}),
    ("cql", "hopper-medium-v2", {"cloning_steps": 0, "data.spread": "plain"}),
    ("cql", "pen-human-v1", {"alpha": 1.0, "policy.learning_rate": 1e-4}),
]


@pytest.mark.parametrize(("name", "task", "expected"), OFFICIAL)
def test_official_settings(name: str, task: str | None, expected: dict[str, Any]) -> None:
    settings = dict(leaves(resolve_preset(name, "paper", task).settings))
    assert {key: settings[key] for key in expected} == expected


def test_dt_makes_ten_times_as_many_updates_as_its_warm_up_has() -> None:
    for task in TASKS:
        preset = resolve_preset("dt", "paper", task)
        assert (preset.run.steps, preset.settings.warmup) == (100_000, 10_000)


def test_quick_is_quick_on_every_task() -> None:
    """What a task's official batch is must not reach two CPU cores."""
    for task in TASKS:
        for name in algorithms():
            assert resolve_preset(name, "quick", task).settings.batch_size <= 256


def test_what_learns_by_rank_keeps_its_own_weights() -> None:
    settings = resolve_preset("icql-rank", "paper", None).settings
    assert (settings.actor_bc, settings.critic_bc, settings.batch_size) == (0.02, 0.0, 256)
    assert (settings.critics, settings.critic_learning_rate, settings.critic_cosine) == (
        10,
        1e-3,
        True,
    )
    quick = resolve_preset("icql-rank", "quick", None).settings  # as it was measured there
    assert (quick.actor_bc, quick.critic_bc, quick.critics) == (0.1, 0.01, 2)
    assert (quick.critic_learning_rate, quick.critic_cosine) == (3e-4, False)


@pytest.mark.parametrize("name", WITHOUT)
def test_what_has_no_such_policy_says_so(name: str) -> None:
    with pytest.raises(UserError, match=rf"--preset robust: .*{name} has one of its own.*paper"):
        resolve_preset(name, "robust", None)
