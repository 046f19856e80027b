"""Steps and updates per second of online SAC: `python benchmarks/sac_speed.py [--task hopper]`."""

from __future__ import annotations

import argparse
import time

import jax
import numpy as np

from icql.algos.base import Spec
from icql.algos.sac import SAC
from icql.online import RECIPES
from icql.online.envs import EnvGroup
from icql.online.journal import Journal, Replay
from icql.online.learning import learn, sampled_actions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=list(RECIPES), default="hopper")
    parser.add_argument("--rows", type=int, default=250, help="rows of 8 steps in each timing")
    given = parser.parse_args()
    recipe, rows = RECIPES[given.task], given.rows
    envs = recipe.settings.envs
    group = EnvGroup(recipe.task, envs, 0)
    spec = Spec(group.observation_dim, group.action_dim, recipe.settings.steps)
    sac, key = SAC(recipe.settings.sac, spec), jax.random.key(0)
    state = sac.init(key)
    replay = Replay.empty(1_000_000, group.observation_dim, group.action_dim)
    journal = Journal.empty(2 * rows + 1, group)

    def act() -> np.ndarray:
        return np.asarray(sampled_actions(state.pi.model, group.observations, key))

    def updates() -> None:
        nonlocal state, replay
        new = journal.packed(journal.length - 1, journal.length)
        state, replay, _ = learn(state, replay, new, key, sac=sac, updates=envs)

    journal.step(group, act())  # both programs are compiled here
    updates()
    jax.block_until_ready(state)

    begin = time.perf_counter()
    for _ in range(rows):
        journal.step(group, act())
    simulated = time.perf_counter()
    for _ in range(rows):
        updates()
    jax.block_until_ready(state)
    learned = time.perf_counter()
    for _ in range(rows):
        journal.step(group, act())
        updates()
    jax.block_until_ready(state)
    together = time.perf_counter()

    print(f"{recipe.task.env_id}, {envs} environments, {jax.devices()[0].device_kind}")
    for label, seconds in (
        ("environment steps with the policy", simulated - begin),
        (f"updates (batch {sac.settings.batch_size})", learned - simulated),
        ("training, one update per step", together - learned),
    ):
        print(f"{label:34} {rows * envs / seconds:8.0f} /s")


if __name__ == "__main__":
    main()
