"""An alarm as ONNX nodes: the distance from the nearest kept state, by brute force in float64.

|x − q|² is least where |x|²/2 − x·q is: one matrix product finds the nearest state, and its
distance is then taken from the difference itself, without the cancellation. Rows are centred first,
so that float64 loses nothing that matters.
"""

from __future__ import annotations

import numpy as np

from icql.evidence.alarm import Alarm
from icql.export.nodes import DOUBLE, Nodes
from icql.export.policy_nodes import not_finite
from icql.retrieval import learned
from icql.retrieval.metric import LARGEST, Fitted


def alarm_nodes(graph: Nodes, alarm: Alarm, state: str) -> tuple[str, str, str]:
    """From states (rows, obs) to distances (rows,), whether it rings (rows,), and the limit ()."""
    space = alarm.retriever.space
    kept = np.asarray(space.embed_states(alarm.retriever.states), np.float64)
    centre = np.median(kept, axis=0)
    columns = np.ascontiguousarray((kept - centre).T)
    embedded = _embedded(graph, space.fitted, graph("Cast", state, to=DOUBLE))
    asked = graph("Sub", embedded, graph.number(centre, np.float64))
    table = graph.number(columns, np.float64)
    halves = graph.number((columns**2).sum(0) / 2, np.float64)
    nearest = graph(
        "ArgMin", graph("Sub", halves, graph("MatMul", asked, table)), axis=1, keepdims=0
    )
    found = graph("Transpose", graph("Gather", table, nearest, axis=1), perm=[1, 0])
    apart = graph("Sub", found, asked)
    axis = graph.number([1], np.int64)
    distance = graph("Sqrt", graph("ReduceSum", graph("Mul", apart, apart), axis, keepdims=0))
    invalid = graph("Squeeze", graph("Cast", not_finite(graph, state), to=DOUBLE), axis)
    distance = graph("Add", distance, invalid)
    limit = graph.number(alarm.limit, np.float64)
    # not "greater": a distance that is NaN has to ring
    return distance, graph("Not", graph("LessOrEqual", distance, limit)), limit


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
    return graph("Cast", graph("Cast", h, to=1), to=DOUBLE)  # features are kept in float32


def _hidden(graph: Nodes, z: str) -> str:
    """ReLU(LN(z)), in float64."""
    z = graph("Sub", z, graph("ReduceMean", z, axes=[1], keepdims=1))
    square = graph("ReduceMean", graph("Mul", z, z), axes=[1], keepdims=1)
    spread = graph("Sqrt", graph("Add", square, graph.number(learned.SMALL, np.float64)))
    return graph("Max", graph("Div", z, spread), graph.number(0, np.float64))


def _rounded(graph: Nodes, x: str, bits: int) -> str:
    up, down = (graph.number(2.0**power, np.float64) for power in (bits, -bits))
    return graph("Mul", graph("Round", graph("Mul", x, up)), down)
