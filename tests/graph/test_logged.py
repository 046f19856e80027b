"""The graph of a dataset, against loops over all pairs of rows in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from icql.data.transitions import DataInfo, Transitions
from icql.errors import UserError
from icql.graph import logged
from icql.graph.logged import compare_rows
from icql.settings.draw import DrawSettings
from retrieval.cases import distance_matrix

Doubles = NDArray[np.float64]
SMALL = DrawSettings(by="advantage", beta=1.0, compared=9, neighbours=4, discount=0.8)


@pytest.fixture(autouse=True)
def to_the_end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep until rounding, where values are compared."""
    if "within" not in request.node.name:
        monkeypatch.setattr(logged, "TOLERANCE", 1e-7)


def make(lengths: tuple[int, ...] = (7, 1, 12, 5, 1, 9), seed: int = 0) -> Transitions:
    """Episodes of these lengths; every second one ends, the others are cut."""
    rng = np.random.default_rng(seed)
    rows = sum(lengths)
    last = np.zeros(rows, bool)
    last[np.cumsum(lengths) - 1] = True
    episode = np.repeat(np.arange(len(lengths)), lengths)
    s, s_next = rng.normal(size=(2, rows, 3)).astype(np.float32)
    a = rng.uniform(-0.9, 0.9, (rows, 2)).astype(np.float32)
    return Transitions(
        states=s,
        actions=a,
        rewards=(10 * rng.normal(size=rows) + 3).astype(np.float32),
        next_states=np.where(last[:, None], s_next, np.roll(s, -1, 0)),
        next_actions=np.roll(a, -1, 0),
        mask=(~(last & (episode % 2 == 0))).astype(np.float32),
        episode=episode.astype(np.int32),
        step=np.concatenate([np.arange(n) for n in lengths]).astype(np.int32),
        info=DataInfo("made"),
    )


def some(data: Transitions, kept: NDArray[Any]) -> Transitions:
    """These rows alone: what is left out leaves gaps in `step`."""
    arrays = ("states", "actions", "rewards", "next_states", "next_actions")
    rest = ("mask", "episode", "step")
    return replace(data, **{name: getattr(data, name)[kept] for name in (*arrays, *rest)})


def expectile(x: Doubles, w: Doubles, tau: float) -> Doubles:
    """Where τ Σ w (x − v)₊ = (1 − τ) Σ w (v − x)₊ along each row, by bisection."""
    low, high = x.min(1), x.max(1)
    for _ in range(60):
        v = (low + high) / 2
        above = tau * (w * np.maximum(x - v[:, None], 0)).sum(1)
        below = (1 - tau) * (w * np.maximum(v[:, None] - x, 0)).sum(1)
        low, high = np.where(above > below, v, low), np.where(above > below, high, v)
    return (low + high) / 2


def by_hand(data: Transitions, s: DrawSettings) -> dict[str, Any]:
    """Q, V, L, what each row is compared with, and weights, row by row."""
    rows = range(len(data))
    r, mask = data.rewards.astype(float), data.mask.astype(float) if s.ends else np.ones(len(data))

    def around(queries: NDArray[Any], first: list[int]) -> tuple[Any, Any, Any]:
        away = distance_matrix(data.states, queries, s.metric)
        near, values, kernels = [], [], []
        for i in rows:
            others = [j for j in rows if data.episode[j] != data.episode[i]]
            nearest = sorted(others, key=lambda j: (away[i, j], j))
            near.append(nearest[: s.compared] if s.compared else others)
            valued = nearest[: s.compared or len(data)][: s.neighbours]
            squares = away[i, valued] ** 2
            values.append([first[i], *valued])
            own = float(first[i] >= 0)
            kernels.append([own, *np.exp(-s.kernel * squares / squares.mean())])
        return near, np.array(values), np.array(kernels)

    def follows(i: int) -> bool:
        if i + 1 == len(data) or data.episode[i + 1] != data.episode[i]:
            return False
        return bool(data.step[i + 1] == data.step[i] + 1)

    near, here, w_here = around(data.states, list(rows))
    after = [i + 1 if follows(i) else -1 for i in rows]
    _, there, w_there = around(data.next_states, after)
    q = np.zeros(len(data))
    for _ in range(500):
        # a hole has no weight, and a value that decides nothing
        x = np.where(there < 0, q[there[:, 1:2]], q[there])
        v_next = expectile(x, w_there, s.expectile)
        before, q = q, r + s.discount * mask * v_next
        if np.abs(q - before).max() < 1e-10 * np.abs(r).max():
            break
    v = expectile(q[here], w_here, s.expectile)
    returns = np.zeros(len(data))
    for i in reversed(rows):
        mixed = (1 - s.trace) * v_next[i] + s.trace * returns[after[i]]
        returns[i] = r[i] + s.discount * mask[i] * (mixed if after[i] >= 0 else v_next[i])
    advantage = returns - v
    steps = {e: [i for i in rows if data.episode[i] == e] for e in data.episode}
    per_step = bool(data.mask.all())  # where nothing in the log ends, whatever `ends` says
    earned = {e: sum(r[i] for i in steps[e]) / (len(steps[e]) if per_step else 1) for e in steps}
    whole = np.array([earned[e] for e in data.episode])

    def share_below(x: NDArray[Any]) -> NDArray[Any]:
        shares = [[1.0 if x[j] < x[i] else 0.5 * (x[j] == x[i]) for j in near[i]] for i in rows]
        return np.array([np.mean(one) for one in shares])

    rank = share_below(returns)
    weights = {
        "advantage": np.minimum(np.exp(s.beta * advantage / advantage.std()), s.limit),
        "robust": np.minimum(
            np.exp(s.beta * advantage / (1.4826 * np.median(np.abs(advantage)))), s.limit
        ),
        "rank": np.exp(s.beta * (rank - 1)),
        "episode": np.exp(s.beta * (share_below(whole) - 1)),
        "top": (rank >= 1 - s.share).astype(float),
        "uniform": np.ones(len(data)),
    }[s.by]
    return {"q": q, "v": v, "returns": returns, "weights": weights / weights.mean()}


def check(data: Transitions, settings: DrawSettings) -> None:
    found, expected = compare_rows(data, settings), by_hand(data, settings)
    size = float(np.abs(expected["q"]).max())
    for name in ("q", "v", "returns"):
        np.testing.assert_allclose(
            getattr(found, name), expected[name], rtol=0, atol=2e-5 * size, err_msg=name
        )
    np.testing.assert_allclose(found.weights, expected["weights"], rtol=1e-3)
    w = expected["weights"]
    assert found.share == pytest.approx(w.sum() ** 2 / (len(w) * (w**2).sum()), rel=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"by": "robust", "limit": 2.0},
        {"by": "rank", "beta": 5.0},
        {"by": "top", "share": 0.3},
        {"by": "episode", "beta": 5.0},
        {"by": "episode", "beta": 5.0, "ends": False},
        {"by": "episode", "beta": 5.0, "compared": 0},
        {"by": "rank", "beta": 5.0, "compared": 0},
        {"by": "top", "share": 0.3, "compared": 0},
        {"by": "advantage", "compared": 0},
        {"ends": False},
        {"trace": 0.0},
        {"trace": 1.0, "by": "rank"},
        {"kernel": 2.0},
        {"metric": "cosine", "kernel": 1.0},
        {"expectile": 0.95},
        {"expectile": 0.5, "discount": 0.0},
        {"neighbours": 30},
    ],
    ids=lambda changes: ", ".join(f"{k} {v}" for k, v in changes.items()) or "advantage",
)
def test_rows_are_compared_as_the_definition_says(changes: dict[str, Any]) -> None:
    check(make(), replace(SMALL, **changes))


@pytest.mark.parametrize("by", ["advantage", "rank", "episode"])
def test_a_gap_in_the_steps_is_where_a_run_ends(by: Any) -> None:
    data = make()
    gaps = some(data, ~np.isin(np.arange(len(data)), [3, 11, 12, 16]))
    assert (np.diff(gaps.step)[np.diff(gaps.episode) == 0] > 1).any()
    check(gaps, replace(SMALL, by=by))


def test_an_episode_is_judged_whole_whatever_a_single_step_brought() -> None:
    """Two that end alike but for their first reward: by rank their last steps are equal."""
    data = make((10, 10))
    twins = replace(data, states=np.tile(data.states[:10], (2, 1)))
    twins = replace(twins, rewards=np.tile(np.float32([0, 1]), 10))
    twins = replace(twins, rewards=np.concatenate([[9], twins.rewards[1:]]).astype(np.float32))
    settings = replace(SMALL, compared=1, neighbours=1, trace=1.0, ends=False, discount=0.0)
    found = compare_rows(twins, replace(settings, by="episode")).weights
    assert (found[:10] > found[10:]).all()
    by_step = compare_rows(twins, replace(settings, by="rank")).weights
    assert by_step[0] > by_step[10]
    np.testing.assert_allclose(by_step[1:10], by_step[11:])


def test_episodes_of_a_single_step() -> None:
    check(make((1,) * 20), SMALL)


def test_nothing_of_the_own_episode_is_compared_but_the_row_and_the_next_one() -> None:
    """Two episodes that run side by side: each is judged by the other alone."""
    data = make((20, 20))
    walk = np.repeat(np.arange(20.0)[None], 2, 0).ravel()  # neighbours in time are near in space
    states = np.stack([walk, np.repeat([0.0, 30.0], 20), 0 * walk], 1).astype(np.float32)
    data = replace(data, states=states, next_states=states + np.float32([1, 0, 0]))
    data = replace(data, rewards=np.repeat(np.float32([0, 1]), 20))
    found = compare_rows(data, replace(SMALL, by="rank", neighbours=1, compared=3, trace=1.0))
    assert (found.weights[20:] > found.weights[:20]).all()
    assert len(np.unique(np.round(found.weights, 9))) == 2


@pytest.mark.parametrize("compared", [26, 27, 64, 10_000])
def test_fewer_other_rows_than_asked_for_are_all_compared(compared: int) -> None:
    data = make((9, 17, 10))  # the rows of the longest episode have 19 others
    settings = replace(SMALL, by="rank", compared=compared)
    found = compare_rows(data, settings)
    assert found.compared == 19
    expected = by_hand(data, replace(settings, compared=19))
    np.testing.assert_allclose(found.weights, expected["weights"], rtol=1e-3)
    assert compare_rows(data, replace(settings, compared=19)).compared == 19
    assert compare_rows(data, replace(settings, compared=5)).compared == 5


def test_a_single_episode_is_refused() -> None:
    with pytest.raises(UserError, match=r"draw\.by: .*other episodes.* single one.*uniform"):
        compare_rows(make((30,)), SMALL)


@pytest.mark.parametrize("by", ["advantage", "robust", "rank", "top", "episode"])
@pytest.mark.parametrize("reward", [0.0, 1.0, -0.3, 1e-5, 1e6])
def test_constant_rewards_that_never_end_are_alike_within_rounding(by: Any, reward: float) -> None:
    data = make()
    data = replace(data, rewards=np.full(len(data), reward, np.float32))
    found = compare_rows(data, replace(SMALL, by=by, ends=False))
    np.testing.assert_array_equal(found.weights, 1)
    assert found.share == 1


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e6])
def test_constant_rewards_count_the_steps_to_an_end_whatever_their_size(scale: float) -> None:
    data = make()
    data = replace(data, rewards=np.full(len(data), -scale, np.float32))
    check(data, SMALL)


def test_the_size_of_rewards_decides_no_weight() -> None:
    data = make()
    small = replace(data, rewards=data.rewards / 1024)
    found, expected = (compare_rows(x, SMALL).weights for x in (small, data))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_weights_that_all_vanish_are_refused() -> None:
    data = make((10,))
    twins = some(data, np.tile(np.arange(10), 2))
    twins = replace(twins, episode=np.repeat([0, 1], 10).astype(np.int32))
    # every row has its equal in the other episode: nobody stands above all others
    settings = replace(SMALL, by="rank", discount=0.0)
    assert compare_rows(twins, replace(settings, beta=3.0)).share < 1
    with pytest.raises(UserError, match=r"draw\.by: all weights vanish.*smaller draw\.beta"):
        compare_rows(twins, replace(settings, beta=1e6))


def test_values_are_found_within_a_share_of_their_range() -> None:
    data, settings = make(), replace(SMALL, discount=0.95)
    found, expected = compare_rows(data, settings), by_hand(data, settings)
    reach = float(np.ptp(data.rewards)) / (1 - settings.discount)
    assert np.abs(found.q - expected["q"]).max() < logged.TOLERANCE * reach


def test_progress_goes_from_the_search_to_value_iteration() -> None:
    told: list[tuple[str, float]] = []
    compare_rows(make(), SMALL, progress=lambda label, share: told.append((label, share)))
    shares = [share for _, share in told]
    assert told[-1][0] == "value iteration"
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] <= 1
