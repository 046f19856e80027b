"""Which algorithm suits a dataset, from the data alone: what `icql train` does without --algo.

Where similar states saw much the same action, as in demonstrations, no critic can know what another
action would have brought: the best of what was done is cloned (`icql-graph`). Where they saw many,
as in logs of a policy that explored, a critic can tell them apart and the policy can go beyond the
log (`icql-rank`, or IQL where actions are choices). On the sets of docs/experiments.md the spread
of actions is 0.12 to 0.18 on demonstrations, 0.11 to 0.37 on sets of one or two policies that draw
their actions, 0.42 on the log of the tutorial's operators, and 0.49 to 0.60 on replays.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from icql.data.transitions import Transitions
from icql.files import default_cache_dir
from icql.graph.logged import action_spread
from icql.retrieval.neighbours import usual_space
from icql.settings.change import leaves, override
from icql.training.plan import AUTO, Plan

LIMIT = 0.4  # docs/experiments.md, E29: between 0.37 and 0.42
OWN_LOG = {
    "data.normalise_states": True,
    "data.spread": "quartiles",
    "context.space": "standardised",
    "draw.space": "standardised",
}


def choose(plan: Plan, data: Transitions, given: Collection[str] = ()) -> tuple[Plan, str]:
    """The plan for the algorithm that suits the data, and why; what was asked for is kept.

    Asked for is what differs from the defaults, and what was `given` by its dotted name: a default
    of `auto` may be another one's choice.
    """
    space = plan.settings.draw.space
    if "draw.space" not in given and space == "raw":
        space = usual_space(data)
    spread = action_spread(data, space=space, cache_dir=default_cache_dir())
    wide = "iql" if data.info.signals.choices else "icql-rank"  # which learns real numbers
    algo = "icql-graph" if spread < LIMIT else wide
    start = Plan.make(AUTO, task=plan.task, dataset=plan.dataset, preset=plan.preset)
    chosen = Plan.make(algo, task=plan.task, dataset=plan.dataset, preset=plan.preset)

    def asked(before: object, now: object) -> dict[str, object]:
        usual = dict(leaves(before))
        return {n: new for n, new in leaves(now) if n in given or new != usual[n]}

    plan = replace(
        chosen,
        columns=plan.columns,
        settings=override(chosen.settings, asked(start.settings, plan.settings)),
        run=override(chosen.run, asked(start.run, plan.run)),
        seeds=plan.seeds,
        grid=plan.grid,
    )
    alike = "much the same action" if spread < LIMIT else "different actions"
    return plan, f"{algo}: similar states saw {alike} (spread {spread:.2f}, limit {LIMIT})"


def standardised(plan: Plan, data: Transitions, given: Collection[str] = ()) -> Plan:
    """The plan for a log of one's own: networks, contexts and draws see standardised columns.

    What was `given` by its dotted name is kept, and so is what nothing reads.
    """
    if not data.info.own:
        return plan
    names = {name for name, _ in leaves(plan.settings)} - set(given)
    wanted = {n: v for n, v in OWN_LOG.items() if n in names and plan.reads(n)}
    settings = override(plan.settings, wanted)
    return plan if settings == plan.settings else replace(plan, settings=settings)
