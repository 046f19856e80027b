"""A policy as ONNX nodes: its state normaliser, its network, and its actions in the log's units."""

from __future__ import annotations

from typing import Any

import numpy as np

from icql.data.signals import Signals
from icql.errors import UserError
from icql.export.nodes import DOUBLE, FLOAT, Nodes
from icql.nn.flow import OneStepPolicy
from icql.nn.mlp import MLP, Activation
from icql.nn.policies import (
    CategoricalPolicy,
    DeterministicPolicy,
    Mean,
    MemoryPolicy,
    Standardised,
    TanhGaussianPolicy,
)

OPERATIONS: dict[Activation, str] = {"relu": "Relu", "tanh": "Tanh"}
NORM_EPSILON = 1e-5  # LayerNorm's


def check_exportable(policy: Standardised) -> None:
    """Refuse policies that a file without memory and without randomness cannot hold."""
    inner: Any = policy.policy
    if isinstance(inner, MemoryPolicy):
        raise UserError(
            "its policy remembers the episode, and an exported one answers each state by itself.",
            where="export",
            fix="Export a run whose policy acts on the state alone: bc, iql, icql, td3bc, …",
        )
    if isinstance(inner, OneStepPolicy):
        raise UserError(
            "its policy draws noise with JAX's generator, which ONNX does not have.",
            where="export",
            fix="Export a run of another algorithm, such as iql, icql, rebrac or bc.",
        )
    if not isinstance(inner, DeterministicPolicy | CategoricalPolicy | TanhGaussianPolicy):
        raise UserError(
            f"policies of the kind {type(inner).__name__} cannot be exported.", where="export"
        )


def policy_nodes(graph: Nodes, policy: Standardised, signals: Signals, state: str) -> str:
    """From states (rows, obs) to what `policy.act` gives: (rows, act), or choices (rows,).

    A state that is not finite gets NaN, or the choice -1: never a number that looks like an action.
    """
    inner: Any = policy.policy
    seen = graph("Sub", state, graph.number(policy.mean))
    seen = graph("Div", seen, graph.number(policy.std))
    if policy.limit is not None:
        seen = graph("Clip", seen, graph.number(-policy.limit), graph.number(policy.limit))
    said = _network(graph, inner.net, seen)
    if isinstance(inner, TanhGaussianPolicy):  # the mean, and not the spread beside it
        ends = (graph.number([x], np.int64) for x in (0, inner.action_dim, 1))
        said = graph("Tanh", graph("Slice", said, *ends))
    invalid = not_finite(graph, state)
    if signals.choices:
        choice = graph("ArgMax", said, axis=1, keepdims=0)
        row = graph("Squeeze", invalid, graph.number([1], np.int64))
        return graph("Where", graph("IsNaN", row), graph.number(-1, np.int64), choice)
    if isinstance(inner, CategoricalPolicy):
        raise UserError("its choices have no names.", where="export")
    return graph("Add", _in_units(graph, signals, said), invalid)


def not_finite(graph: Nodes, state: str) -> str:
    """(rows, 1): NaN where a number of the state is NaN or infinite, else 0."""
    nothing = graph("Mul", state, graph.number(0.0))
    return graph("ReduceSum", nothing, graph.number([1], np.int64), keepdims=1)


def _network(graph: Nodes, net: MLP | Mean, x: str) -> str:
    """Linear → activation → [LayerNorm], repeated; then a last linear layer (`MLP.by_layer`)."""
    if isinstance(net, Mean):
        return graph("Mean", *(_network(graph, one, x) for one in net.split()))
    for i, layer in enumerate(net.layers):
        last = i == len(net.layers) - 1
        x = graph("Gemm", x, graph.number(layer.weight), graph.number(layer.bias))
        activation = net.final_activation if last else net.activation
        if activation != "none":
            x = graph(_operation(activation), x)
        if net.norms and not last:
            scale, shift = (graph.number(part) for part in (net.norms[i].scale, net.norms[i].shift))
            x = graph("LayerNormalization", x, scale, shift, axis=-1, epsilon=NORM_EPSILON)
    return x


def _operation(activation: Activation) -> str:
    if activation not in OPERATIONS:
        raise UserError(f"a network with {activation} cannot be exported.", where="export")
    return OPERATIONS[activation]


def _in_units(graph: Nodes, signals: Signals, action: str) -> str:
    """low + (a + 1) / 2 · (high − low), in float64 as `Signals.in_units`."""
    if not signals.bounded:
        return action
    low, high = (np.asarray(x, np.float64) for x in (signals.action_low, signals.action_high))
    wide = graph("Cast", action, to=DOUBLE)
    share = graph("Add", wide, graph.number(1, np.float64))
    share = graph("Div", share, graph.number(2, np.float64))
    above = graph("Mul", share, graph.number(high - low, np.float64))
    return graph("Cast", graph("Add", graph.number(low, np.float64), above), to=FLOAT)
