"""The preset `robust`: the same policy and, on MuJoCo, the same standardised states for all."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from icql.algos.presets import PRESETS, presets_of, resolve_preset
from icql.algos.registry import algorithms
from icql.data.tasks import list_tasks
from icql.errors import UserError
from icql.settings.change import override
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
        layer_norm=True,
        dropout=0.1 if few else 0.0,
        noise=1.0 if few else 0.0,
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
        assert rest(robust.settings) == rest(expected)
        assert robust.sources[: len(paper.sources)] == paper.sources
        assert len(robust.sources) > len(paper.sources)
        assert robust.run == resolve_preset("bc", "robust", task).run


@pytest.mark.parametrize("name", WITHOUT)
def test_what_has_no_such_policy_says_so(name: str) -> None:
    with pytest.raises(UserError, match=rf"--preset robust: .*{name} has one of its own.*paper"):
        resolve_preset(name, "robust", None)
