"""A small MDP whose values are known by dynamic programming, logged with real numbers.

States 0 … N−1 lie on a line, with their place as observation; an action a ∈ [-1, 1] moves right
with probability (1 + a) / 2, else left. Right of the end the episode ends with a reward of 10, left
of the beginning one stays; every step pays -0.1 − 0.2 a². Episodes begin at random.
"""

from __future__ import annotations

import numpy as np

from icql.data.transitions import Steps, Transitions

PLACES, GAMMA, GOAL, COST = 6, 0.9, 10.0, 0.1


def place(states: np.ndarray) -> np.ndarray:
    """Observations (B, 2) of places, far from unit scale."""
    return np.stack([3.0 * states + 5.0, np.cos(states)], -1).astype(np.float32)


def where(observations: np.ndarray) -> np.ndarray:
    return np.clip(np.rint((observations[..., 0] - 5.0) / 3.0), 0, PLACES - 1).astype(int)


def value(policy: np.ndarray) -> np.ndarray:
    """V (N,) of a policy that takes action policy[s] in place s, exactly."""
    right, matrix = (1 + policy) / 2, np.eye(PLACES)
    paid = -COST - 0.2 * policy**2
    for s in range(PLACES):
        matrix[s, max(s - 1, 0)] -= GAMMA * (1 - right[s])
        if s + 1 < PLACES:
            matrix[s, s + 1] -= GAMMA * right[s]
        else:
            paid[s] += GOAL * right[s]
    return np.linalg.solve(matrix, paid)


def noisy_value(mean: float, noise: float, points: int = 2001) -> np.ndarray:
    """V (N,) of a ~ clip(N(mean, noise²)): what the log's behaviour is worth, exactly."""
    z = (np.arange(points) + 0.5) / points
    draws = np.clip(mean + noise * np.sqrt(2) * _erfinv(2 * z - 1), -1, 1)
    right, square = (1 + draws.mean()) / 2, (draws**2).mean()
    matrix, paid = np.eye(PLACES), np.full(PLACES, -COST - 0.2 * square)
    for s in range(PLACES):
        matrix[s, max(s - 1, 0)] -= GAMMA * (1 - right)
        if s + 1 < PLACES:
            matrix[s, s + 1] -= GAMMA * right
        else:
            paid[s] += GOAL * right
    return np.linalg.solve(matrix, paid)


def steps(
    episodes: int = 300, mean: float = 0.2, noise: float = 0.5, seed: int = 0, limit: int = 40
) -> Steps:
    """A log of a ~ clip(N(mean, noise²)); episodes of `limit` steps are cut."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list] = {k: [] for k in ("s", "a", "r", "end", "cut", "s_next")}
    for _ in range(episodes):
        s = int(rng.integers(PLACES))
        for step in range(limit):
            a = float(np.clip(mean + noise * rng.normal(), -1, 1))
            goes = 1 if rng.random() < (1 + a) / 2 else -1
            after, end = max(s + goes, 0), s + goes == PLACES
            r = -COST - 0.2 * a**2 + GOAL * end
            row = (s, [a], r, end, step == limit - 1 and not end, min(after, PLACES - 1))
            for key, entry in zip(columns, row, strict=True):
                columns[key].append(entry)
            if end:
                break
            s = after
    return Steps(
        observations=place(np.array(columns["s"])),
        actions=np.array(columns["a"], np.float32),
        rewards=np.array(columns["r"], np.float32),
        terminals=np.array(columns["end"]),
        timeouts=np.array(columns["cut"]),
        next_observations=place(np.array(columns["s_next"])),
    )


def log(**changes: object) -> Transitions:
    return Transitions.from_steps(steps(**changes))  # type: ignore[arg-type]


def _erfinv(x: np.ndarray) -> np.ndarray:
    from scipy.special import erfinv

    return np.asarray(erfinv(x))
