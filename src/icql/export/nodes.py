"""Nodes and numbers of an ONNX graph, put down one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

# Operations as of 2021 suffice, so that old runtimes read the files; no newer format is claimed.
OPSET, FORMAT = 17, 8
FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE
INT64, BOOL = TensorProto.INT64, TensorProto.BOOL


class Nodes:
    """A graph in the making; values are known by their names."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix  # of all names
        self._nodes: list[onnx.NodeProto] = []
        self._numbers: list[onnx.TensorProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def __call__(self, operation: str, *inputs: str, **attributes: Any) -> str:
        """Put down a node; returns the name of what it gives."""
        name = f"{self._prefix}{operation.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operation, inputs, [name], name=name, **attributes))
        return name

    def several(self, operation: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """Put down a node that gives several values; returns their names."""
        name = f"{self._prefix}{operation.lower()}_{len(self._nodes)}"
        names = [f"{name}_{i}" for i in range(count)]
        self._nodes.append(helper.make_node(operation, inputs, names, name=name, **attributes))
        return names

    def number(self, value: ArrayLike, dtype: Any = np.float32) -> str:
        """Put down an array; returns its name."""
        name = f"{self._prefix}number_{len(self._numbers)}"
        array = np.asarray(value, dtype, order="C")
        self._numbers.append(numpy_helper.from_array(array, name))
        return name

    def unless(self, done: str, value: str, otherwise: Callable[[Nodes], str], kind: int) -> str:
        """`value` where `done` is true, else what `otherwise` puts down, which is not run before.

        Both are (rows,) of the same kind.
        """
        name = f"{self._prefix}if_{len(self._nodes)}"
        branches = {}
        for word, made in (("then", lambda graph: value), ("else", otherwise)):
            inner = Nodes(f"{name}_{word}_")
            found = inner("Identity", made(inner))
            output = helper.make_tensor_value_info(found, kind, ["rows"])
            branches[f"{word}_branch"] = helper.make_graph(
                inner._nodes, word, [], [output], inner._numbers
            )
        self._nodes.append(helper.make_node("If", [done], [name], name=name, **branches))
        return name

    def output(self, name: str, value: str, kind: int, shape: list[str | int]) -> None:
        """Call a value by a name that stays."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=name))
        self._outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def model(self, state: str, width: int) -> onnx.ModelProto:
        """The whole: from states (rows, width) in float32 to the outputs."""
        given = helper.make_tensor_value_info(state, FLOAT, ["rows", width])
        graph = helper.make_graph(self._nodes, "policy", [given], self._outputs, self._numbers)
        made = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=FORMAT,
            producer_name="icql",
        )
        onnx.checker.check_model(made, full_check=True)
        return made
