"""Which algorithm suits a dataset, from the data alone: what `icql train` does without --algo.

Where similar states saw many actions, as in logs of a policy that changed while it explored, a
critic can tell them apart and the policy can go beyond the log (`icql-rank`, or IQL where actions
are choices). Where they saw much the same action, no critic can know what another one would have
brought: the best of what was done is cloned (`icql-graph`). What is best is said by the graph's
values where people show something, each in a way of their own that lasts. Where a policy drew its
actions anew at every step, what followed a single one says little but how its noise fell; if there
one can also fall, whole episodes are compared (docs/experiments.md, E8, E29 and E30).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from icql.data.transitions import Transitions
from icql.files import default_cache_dir
from icql.graph.deviations import Around, action_spread, deviations_last
from icql.retrieval.neighbours import usual_space
from icql.settings.change import leaves, override
from icql.training.plan import AUTO, Plan

LIMIT = 0.4  # of the spread; docs/experiments.md, E29: between 0.37 and 0.42
LASTING = 0.35  # of what deviations keep to the next step; E30: between 0.21 and 0.55
BY_EPISODE = {"draw.by": "episode", "draw.beta": 10.0}
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
    around = Around(data, space=space, cache_dir=default_cache_dir())
    spread = action_spread(around)
    if spread >= LIMIT:
        # ICQL-rank learns real numbers
        algo = "iql" if data.info.signals.choices else "icql-rank"
        why = f"similar states saw different actions (spread {spread:.2f}, limit {LIMIT})"
    else:
        algo = "icql-graph"
        why = f"similar states saw much the same action (spread {spread:.2f}, limit {LIMIT})"
    start = Plan.make(AUTO, task=plan.task, dataset=plan.dataset, preset=plan.preset)
    chosen = Plan.make(algo, task=plan.task, dataset=plan.dataset, preset=plan.preset)

    def asked(before: object, now: object) -> dict[str, object]:
        usual = dict(leaves(before))
        return {n: new for n, new in leaves(now) if n in given or new != usual[n]}

    wanted = asked(start.settings, plan.settings)
    # how sharp weights are means something for one kind of them: all of it is ours, or nothing
    free = algo == "icql-graph" and not wanted.keys() & BY_EPISODE.keys()
    if free and not data.mask.all() and (lasting := deviations_last(around)) < LASTING:
        wanted |= BY_EPISODE
        why += (
            f", and what differs is noise ({lasting:.2f} of it lasts to the next step, limit "
            f"{LASTING}); episodes can fail, so they are compared whole"
        )
    plan = replace(
        chosen,
        columns=plan.columns,
        settings=override(chosen.settings, wanted),
        run=override(chosen.run, asked(start.run, plan.run)),
        seeds=plan.seeds,
        grid=plan.grid,
    )
    return plan, f"{algo}: {why}"


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
