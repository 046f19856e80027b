"""The alarm rings as rarely as it says on episodes like the logged ones, and on others often."""

from __future__ import annotations

import numpy as np
import pytest

import icql
import pendulum
from icql.data.transitions import DataInfo, Transitions
from icql.errors import UserError
from icql.evidence.alarm import fit_alarm

EPISODES, LENGTH = 300, 20


def walks(episodes: int, seed: int) -> Transitions:
    """Episodes of four sensors of very different size that drift together."""
    rng = np.random.default_rng(seed)
    drift = 0.3 * rng.normal(size=(episodes, LENGTH, 2)).cumsum(1)
    hidden = rng.normal(size=(episodes, 1, 2)) + drift
    s = np.concatenate([hidden, hidden[..., ::-1] + hidden], -1) * [1e5, 0.2, 1.0, 50.0]
    s = s.reshape(-1, 4).astype(np.float32)
    n = len(s)
    none = np.zeros(n, np.float32)
    return Transitions(
        states=s,
        actions=none[:, None],
        rewards=none,
        next_states=s,
        next_actions=none[:, None],
        mask=none,
        episode=np.repeat(np.arange(episodes), LENGTH).astype(np.int32),
        step=np.tile(np.arange(LENGTH), episodes).astype(np.int32),
        info=DataInfo("walks"),
    )


@pytest.mark.parametrize("rate", [0.05, 0.1])
def test_false_alarms_are_as_many_as_stated(rate):
    alarm = fit_alarm(walks(2000, 0), rate=rate)  # of fewer, the rate itself varies by more
    new = alarm(walks(2000, 1).states)
    assert abs(new.rings.mean() - rate) < 0.01
    assert new.limit == alarm.limit
    assert f"{alarm.limit:.4g}, at {rate} of new states" in repr(alarm)
    np.testing.assert_array_equal(new.rings, new.distance > alarm.limit)


def test_of_few_episodes_the_rate_holds_on_average_over_logs():
    """Their states come in bundles: of a single log it may be several points off."""
    rang = {0.05: [], 0.1: []}
    for seed in range(40):
        log, new = walks(20, 2 * seed), walks(50, 2 * seed + 1).states
        for rate, found in rang.items():
            found.append(fit_alarm(log, rate=rate)(new).rings.mean())
    for rate, found in rang.items():
        assert abs(np.mean(found) - rate) < 0.02
    assert np.std(rang[0.05]) > 0.01


def test_a_stuck_sensor_and_another_plant_are_caught():
    log = walks(EPISODES, 0)
    alarm = fit_alarm(log, rate=0.05)
    stuck = walks(50, 2).states.copy()
    stuck[:, 2] = 12.0 * log.states[:, 2].std()  # at the end of its scale
    assert alarm(stuck).rings.mean() >= 0.95
    assert alarm(log.states[:, ::-1]).rings.mean() >= 0.95


def test_the_nearest_row_is_named():
    log = walks(20, 0)
    found = fit_alarm(log, rate=0.1)(log.states[[7, 100]])
    assert found.row.tolist() == [7, 100]
    np.testing.assert_allclose(found.distance, 0)
    assert not found.rings.any()


def test_what_cannot_be_calibrated_is_said():
    log = walks(2, 0)
    with pytest.raises(UserError, match="40 logged states cannot show a rate of"):
        fit_alarm(log, rate=0.001)
    with pytest.raises(UserError, match="between 0 and 1"):
        fit_alarm(log, rate=1.5)
    with pytest.raises(UserError, match="there is a single one"):
        fit_alarm(walks(1, 0))
    with pytest.raises(UserError, match=r"must have shape \(B, 4\)"):
        fit_alarm(log, rate=0.1)(np.zeros((3, 5)))
    with pytest.raises(UserError):
        fit_alarm(log, rate=0.1)(np.full((1, 4), np.nan))


def test_the_alarm_of_a_run(tmp_path):
    pendulum.register()
    path = pendulum.make_data(tmp_path / "pendulum.npz", steps=600)
    small = {"policy.hidden": [4], "batch_size": 8}
    out = tmp_path / "run"
    icql.train(
        "bc", dataset=str(path), steps=1, out=out, settings=small, run={"episodes": 0}, quiet=True
    )
    alarm = icql.load_alarm(out, rate=0.1)
    data = icql.load_dataset(str(path))
    assert not alarm(data.states[:50]).rings.any()
    assert alarm(100 + data.states[:50]).rings.all()
    still = np.repeat(data.states[:1], 30, axis=0)
    assert not alarm.stuck(data.states[data.episode == 0]).any()
    assert alarm.stuck(still)[-1].all()  # no sensor of a pendulum stands still


def test_a_part_of_the_states_keeps_the_rate_with_a_limit_of_its_own():
    log = walks(2000, 0)
    whole, part = fit_alarm(log, rate=0.05), fit_alarm(log, rate=0.05, states=2000)
    assert len(part.kept) == 2000
    assert part.retriever.engine == "exact"
    assert part.limit > 1.2 * whole.limit  # fewer states lie farther apart
    new = part(walks(2000, 1).states)
    assert abs(new.rings.mean() - 0.05) < 0.01
    assert np.isin(new.row, part.kept).all()
    nearest = np.argmin(np.abs(part.kept - 7))
    assert part(log.states[[part.kept[nearest]]]).row == part.kept[nearest]
    assert fit_alarm(log, rate=0.05, states=10**6).limit == whole.limit


def test_states_of_a_single_episode_are_too_few():
    with pytest.raises(UserError, match="1 are too few"):
        fit_alarm(walks(20, 0), states=1)
