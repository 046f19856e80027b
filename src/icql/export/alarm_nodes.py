"""An alarm as ONNX nodes: the exact distance from the nearest kept state.

As in `icql.retrieval.exact`, float32 proposes a few states, float64 measures them, and a bound on
float32's error certifies that no other one is nearer. Where it cannot, as in logs with many states
that are all but the same, all states are measured in float64. Most of the work is to read every
state once: in float32 that is half of it.

|x − q|² is least where |x|²/2 − x·q is, which is one matrix product. Rows are centred first, so
that little is lost to cancellation, and scaled by a power of two to at most 1.
"""

from __future__ import annotations

import numpy as np

from icql.evidence.alarm import Alarm
from icql.export.nodes import DOUBLE, FLOAT, INT64, Nodes
from icql.export.policy_nodes import not_finite
from icql.retrieval import learned
from icql.retrieval.index import FLOAT32
from icql.retrieval.metric import LARGEST, Fitted, Rows

PROPOSED = 16  # states that float32 proposes


def alarm_nodes(graph: Nodes, alarm: Alarm, state: str) -> tuple[str, str, str]:
    """From states (rows, obs) to distances (rows,), whether it rings (rows,), and the limit ()."""
    space = alarm.retriever.space
    kept = np.asarray(space.embed_states(alarm.retriever.states), np.float64)
    centre = np.median(kept, axis=0)
    kept = kept - centre
    scale = 2.0 ** -int(np.frexp(max(np.abs(kept).max(), 1e-100))[1])
    embedded = _embedded(graph, space.fitted, graph("Cast", state, to=DOUBLE))
    asked = graph("Sub", embedded, graph.number(centre, np.float64))
    asked = graph("Mul", asked, graph.number(scale, np.float64))
    least = _least(graph, asked, scale * kept)
    distance = graph("Div", graph("Sqrt", least), graph.number(scale, np.float64))
    invalid = graph("Cast", not_finite(graph, state), to=DOUBLE)
    invalid = graph("Squeeze", invalid, graph.number([1], np.int64))
    distance = graph("Add", distance, invalid)
    limit = graph.number(alarm.limit, np.float64)
    # not "greater": a distance that is NaN has to ring
    return distance, graph("Not", graph("LessOrEqual", distance, limit)), limit


def _least(graph: Nodes, asked: str, kept: Rows) -> str:
    """The squared distance of each query (rows, D) from the nearest of the kept states (M, D)."""
    table = graph.number(kept, np.float64)
    halves = (kept**2).sum(1) / 2

    def measured(inner: Nodes, ids: str) -> str:
        """|x − q|² (rows, m) of the states that are named (rows, m)."""
        each = inner("Unsqueeze", asked, inner.number([1], np.int64))
        apart = inner("Sub", inner("Gather", table, ids, axis=0), each)
        return _sum(inner, inner("Mul", apart, apart), 2)

    def in_float64(inner: Nodes) -> str:
        products = inner("Gemm", asked, table, transB=1)
        scores = inner("Sub", inner.number(halves, np.float64), products)
        return _sum(inner, measured(inner, inner("ArgMin", scores, axis=1, keepdims=1)), 1)

    if len(kept) <= PROPOSED:
        return in_float64(graph)
    near = graph.number(kept.T)
    products = graph("MatMul", graph("Cast", asked, to=FLOAT), near)
    scores = graph("Sub", graph.number(halves), products)
    best, ids = graph.several(
        "TopK", 2, scores, graph.number([PROPOSED], np.int64), axis=1, largest=0
    )
    reach = graph("ReduceMin", measured(graph, ids), axes=[1], keepdims=0)
    last = graph("Gather", best, graph.number(PROPOSED - 1, np.int64), axis=1)
    doubt = graph("Not", _certain(graph, asked, graph("Cast", last, to=DOUBLE), reach, kept))
    doubts = graph("ReduceSum", graph("Cast", doubt, to=INT64), keepdims=0)
    none = graph("Equal", doubts, graph.number(0, np.int64))
    return graph.unless(none, reach, in_float64, DOUBLE)


def _certain(graph: Nodes, asked: str, last: str, reach: str, kept: Rows) -> str:
    """Whether no state that was not proposed can be nearer (rows,): the bound of `exact._error`."""
    unit, underflow = FLOAT32
    length = _sum(graph, graph("Mul", asked, asked), 1)
    two = graph.number(2, np.float64)
    unseen = graph("Add", graph("Mul", last, two), length)
    farthest = graph("Add", graph("Mul", graph("Sqrt", length), two), graph("Sqrt", reach))
    share = graph.number((2 * kept.shape[1] + 16) * unit, np.float64)
    error = graph("Mul", graph("Mul", farthest, farthest), share)
    error = graph("Add", error, graph.number(underflow, np.float64))
    return graph("Greater", unseen, graph("Add", reach, error))


def _sum(graph: Nodes, x: str, axis: int) -> str:
    return graph("ReduceSum", x, graph.number([axis], np.int64), keepdims=0)


def _embedded(graph: Nodes, fitted: Fitted, x: str) -> str:
    """States where distances are measured: columns by their spreads, or learned features."""
    if set(fitted) == {"scale"}:
        scaled = graph("Div", x, graph.number(fitted["scale"], np.float64))
        return graph("Clip", scaled, *(graph.number(s * LARGEST, np.float64) for s in (-1, 1)))
    return _features(graph, fitted, x) if fitted else x


def _features(graph: Nodes, fitted: Fitted, x: str) -> str:
    """What `icql.retrieval.learned.features_of` computes, rounding included."""
    number = {name: graph.number(value, np.float64) for name, value in fitted.items()}
    h = graph("Div", graph("Sub", x, number["centre"]), number["scale"])
    h = graph("Clip", h, *(graph.number(s * learned.FAR, np.float64) for s in (-1, 1)))
    h = _rounded(graph, h, learned.INPUT_BITS)
    h = _hidden(graph, graph("Add", graph("MatMul", h, number["w1"]), number["b1"]))
    h = _rounded(graph, h, learned.HIDDEN_BITS)
    h = _hidden(graph, graph("Add", graph("MatMul", h, number["w2"]), number["b2"]))
    h = graph("Div", graph("Sub", h, number["mean"]), number["std"])
    return graph("Cast", graph("Cast", h, to=FLOAT), to=DOUBLE)  # features are kept in float32


def _hidden(graph: Nodes, z: str) -> str:
    """ReLU(LN(z)), in float64."""
    z = graph("Sub", z, graph("ReduceMean", z, axes=[1], keepdims=1))
    square = graph("ReduceMean", graph("Mul", z, z), axes=[1], keepdims=1)
    spread = graph("Sqrt", graph("Add", square, graph.number(learned.SMALL, np.float64)))
    return graph("Max", graph("Div", z, spread), graph.number(0, np.float64))


def _rounded(graph: Nodes, x: str, bits: int) -> str:
    up, down = (graph.number(2.0**power, np.float64) for power in (bits, -bits))
    return graph("Mul", graph("Round", graph("Mul", x, up)), down)
