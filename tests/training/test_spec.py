"""What an algorithm is told of the log: by how much its actions deviate, where that is a unit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from icql.graph.deviations import Around, deviation_sizes
from icql.settings.algorithms import IQLSettings, RankSettings, ReBRACSettings
from icql.training.device import fit_normaliser
from icql.training.plan import Plan
from icql.training.spec import logged_deviations, spec_of
from training.test_choose import make


def test_a_policy_that_counts_in_deviations_is_told_them() -> None:
    data = make(True, noise=0.2, ends=False)
    plan = Plan.make("icql-rank", dataset="log.npz").asked(settings={"q_unit": "noise"})
    spec = spec_of(plan, None, data, fit_normaliser(data, plan.settings.data))
    assert spec.deviations == pytest.approx((0.2, 0.2), abs=0.06)
    plain = replace(plan, settings=replace(plan.settings, q_unit="spread"))
    assert spec_of(plain, None, data, fit_normaliser(data, plan.settings.data)).deviations == ()


@pytest.mark.parametrize("settings", [RankSettings(), ReBRACSettings(), IQLSettings()])
def test_others_do_not_look(settings: RankSettings | ReBRACSettings | IQLSettings) -> None:
    assert logged_deviations(settings, make(True, noise=0.2)) == ()


def test_near_is_what_is_near_in_the_units_of_ones_own_columns() -> None:
    """A column in Pa beside one in °C: as they are, the first alone would say who is near."""
    data = make(True, noise=0.2)
    states = data.states * np.array([1.0, 1e4], np.float32)
    scaled = replace(data, states=states)
    assert scaled.info.own
    told = logged_deviations(replace(RankSettings(), q_unit="noise"), scaled)
    assert told == pytest.approx(deviation_sizes(Around(scaled, space="standardised")))
    assert max(deviation_sizes(Around(scaled))) > 1.5 * max(told)
