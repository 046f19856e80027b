"""Which algorithm suits a dataset, from the data alone: what `icql train` does without --algo.

Where similar states saw many actions, as in logs of a policy that changed while it explored, a
critic can tell them apart and the policy can go beyond the log (`icql-rank`, or IQL where actions
are choices). Where they saw much the same action, and people show something, each in a way of their
own that lasts, the best of what was done is cloned, by the graph's values (`icql-graph`). Where a
policy drew its actions anew at every step, what followed a single one says little but how its noise
fell. If there one can also fall, whole episodes are compared, and the best are cloned. If not, the
noise is an experiment: a critic learns from all rows what it does, and the policy goes on from the
log by a few times as much (`icql-rank` again). Measured in docs/experiments.md, E8, E29, E30, E32.
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
LASTING = 0.45  # of what deviations keep to the next step; E30, E32: between 0.34 and 0.55
BY_EPISODE = {"draw.by": "episode", "draw.beta": 10.0}
BY_NOISE = {"draw.by": "uniform", "q_unit": "noise", "actor_bc": 0.1}
OWN_LOG = {
    "policy.layer_norm": False,  # its output hardly grows where a plant drifts off; E32
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
    start = Plan.make(AUTO, task=plan.task, dataset=plan.dataset, preset=plan.preset)

    def asked(before: object, now: object) -> dict[str, object]:
        usual = dict(leaves(before))
        return {n: new for n, new in leaves(now) if n in given or new != usual[n]}

    wanted = asked(start.settings, plan.settings)
    space = plan.settings.draw.space
    if "draw.space" not in given and space == "raw":
        space = usual_space(data)
    around = Around(data, space=space, cache_dir=default_cache_dir())
    spread, ours = action_spread(around), dict[str, object]()
    numbers = not data.info.signals.choices  # ICQL-rank learns real numbers
    if spread >= LIMIT:
        algo = "icql-rank" if numbers else "iql"
        why = f"similar states saw different actions (spread {spread:.2f}, limit {LIMIT})"
    else:
        algo = "icql-graph"
        why = f"similar states saw much the same action (spread {spread:.2f}, limit {LIMIT})"
        # how sharp weights are means something for one kind of them: all of it is ours, or nothing
        free, fail = not wanted.keys() & BY_EPISODE.keys(), not data.mask.all()
        if free and (numbers or fail) and (lasting := deviations_last(around)) < LASTING:
            why += (
                f", and what differs is noise ({lasting:.2f} of it lasts to the next step, limit "
                f"{LASTING}); "
            )
            if fail:
                ours |= BY_EPISODE
                why += "episodes can fail, so they are compared whole"
            else:
                algo, ours = "icql-rank", ours | BY_NOISE
                why += "nothing ends, so a critic learns from it, and all rows count alike"
    chosen = Plan.make(algo, task=plan.task, dataset=plan.dataset, preset=plan.preset)
    plan = replace(
        chosen,
        columns=plan.columns,
        settings=override(chosen.settings, ours | wanted),
        run=override(chosen.run, asked(start.run, plan.run)),
        seeds=plan.seeds,
        grid=plan.grid,
    )
    return plan, f"{algo}: {why}"


def standardised(plan: Plan, data: Transitions, given: Collection[str] = ()) -> Plan:
    """The plan for a log of one's own: networks, contexts and draws see standardised columns.

    Its policy has no LayerNorm: far from all that was logged it then still steers harder back.
    What was `given` by its dotted name is kept, and so is what nothing reads.
    """
    if not data.info.own:
        return plan
    names = {name for name, _ in leaves(plan.settings)} - set(given)
    wanted = {n: v for n, v in OWN_LOG.items() if n in names and plan.reads(n)}
    settings = override(plan.settings, wanted)
    return plan if settings == plan.settings else replace(plan, settings=settings)
