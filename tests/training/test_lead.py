"""Actions shown before their time: which row's action a state gets, and that training sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import icql
from icql.data.transitions import DataInfo, Transitions
from icql.settings.contexts import DataSettings
from icql.training.device import fit_normaliser, pack, unpack


def log(seed: int = 0) -> tuple[Transitions, list[dict[str, Any]]]:
    """Episodes of 1 to 9 steps, some ended, some cut off, with rows left out; and row by row."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for episode, length in enumerate(rng.integers(1, 10, 12)):
        terminal = bool(rng.integers(2))
        actions = rng.uniform(-1, 1, (length + 1, 2)).astype(np.float32)
        for step in range(length):
            ended = terminal and step == length - 1
            if rng.random() < 0.15 and not ended:
                continue  # marked invalid
            after = np.zeros(2, np.float32) if ended else actions[step + 1]
            rows.append(
                {"episode": episode, "step": step, "a": actions[step], "next": after, "end": ended}
            )
    count = len(rows)
    states = rng.normal(size=(count, 3)).astype(np.float32)
    data = Transitions(
        states=states,
        actions=np.stack([r["a"] for r in rows]),
        rewards=np.arange(count, dtype=np.float32),
        next_states=states + 1,
        next_actions=np.stack([r["next"] for r in rows]),
        mask=np.array([not r["end"] for r in rows], np.float32),
        episode=np.array([r["episode"] for r in rows], np.int32),
        step=np.array([r["step"] for r in rows], np.int32),
        info=DataInfo("made"),
    )
    return data, rows


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lead", [0, 1, 3, 20])
def test_every_state_gets_the_action_of_so_many_steps_later(lead: int, seed: int) -> None:
    data, rows = log(seed)
    packed = pack(data, fit_normaliser(data, DataSettings(lead=lead)))
    seen = unpack(jnp.asarray(packed), 3, 2)
    for i, row in enumerate(rows):
        later = max(
            (r for r in rows if r["episode"] == row["episode"]
             and row["step"] <= r["step"] <= row["step"] + lead),
            key=lambda r: r["step"],
        )  # fmt: skip
        assert_array_equal(seen.a[i], later["a"])
        nobody = later["end"] and later is not row  # a' of an end is none
        assert_array_equal(seen.a_next[i], later["a"] if nobody else later["next"])
    assert_array_equal(seen.s, data.states)  # all else stays where it was
    assert_array_equal(seen.s_next, data.next_states)
    assert_array_equal(seen.r, data.rewards)
    assert_array_equal(seen.mask, data.mask)


def test_some_rows_alone_are_as_among_all() -> None:
    """As data is read that does not fit into memory."""
    data, rows = log()
    normaliser = fit_normaliser(data, DataSettings(lead=3))
    some = np.random.default_rng(1).permutation(len(rows))[:7]
    assert_array_equal(pack(data, normaliser, some), pack(data, normaliser)[some])


@pytest.mark.parametrize("algo", ["bc", "icql-graph"])
def test_a_run_learns_what_a_shifted_log_would_teach(algo: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ends = np.zeros(90, bool)
    ends[29::30] = True
    steps = {
        "observations": rng.normal(size=(90, 3)).astype(np.float32),
        "actions": rng.uniform(-0.9, 0.9, (90, 2)).astype(np.float32),
        "rewards": rng.normal(size=90).astype(np.float32),
        "terminals": ends,
        "timeouts": np.zeros(90, bool),
    }
    steps["actions"][[29, 59]] = [[0.9, 0.9], [-0.9, -0.9]]  # the same range in both logs
    last = np.repeat([29, 59, 88], 30)  # the file's very last step is no transition
    later = np.minimum(np.arange(90) + 4, last)
    np.savez(tmp_path / "log.npz", **steps)
    np.savez(tmp_path / "shifted.npz", **{**steps, "actions": steps["actions"][later]})

    def actions(name: str, **given: Any) -> np.ndarray:
        run = tmp_path / f"{name}-{'-'.join(given)}"
        icql.train(
            dataset=str(tmp_path / f"{name}.npz"), algo=algo, steps=5, episodes=0, out=run,
            settings={"policy.hidden": (8,), "batch_size": 8, **given},
        )  # fmt: skip
        return icql.load_policy(run).act(steps["observations"])

    expected = actions("shifted")
    assert_array_equal(actions("log", **{"data.lead": 4}), expected)
    assert np.abs(actions("log") - expected).max() > 1e-4
