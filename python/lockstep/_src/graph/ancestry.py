"""Dependencies between the operations of a graph: what runs with an operation, and what its value is computed from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import tensorflow as tf

# The attribute that every communicating op has, and no other op (tf/comm/collective_op.h).
_COLLECTIVE_ATTR = "lockstep_priority"
# The attributes of operations that hold the functions whose outputs are the operations' results.
_RESULTS = {
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "StatelessCase": ("branches",),
    "While": ("body",),
    "StatelessWhile": ("body",),
}


def ancestors(elements: Iterable[Any], fed: Collection[str] = ()) -> Iterator[tf.Operation]:
    """Yields once each operation that runs when `elements` (tensors and operations of one graph) are fetched.

    Args:
      elements: the fetched tensors and operations.
      fed: names of tensors that are fed, so that they aren't computed.
    """
    seen = set()
    front = [getattr(element, "op", element) for element in elements if not fed or element.name not in fed]
    while front:
        op = front.pop()
        if op in seen:
            continue
        seen.add(op)
        yield op
        front.extend([*(source.op for source in op.inputs if source.name not in fed), *op.control_inputs])


def communicates(elements: Iterable[Any]) -> bool:
    """Returns whether fetching `elements` runs a collective, also one inside a function that it calls."""
    behind = list(ancestors(elements))
    return any(_COLLECTIVE_ATTR in op.node_def.attr for op in behind) or any(
        _COLLECTIVE_ATTR in node.attr for node in nodes_of_functions(behind)
    )


def nodes_of_functions(ops: Iterable[tf.Operation]) -> Iterator[Any]:
    """Yields the nodes (NodeDef) of the functions that operations call, and of the functions that these call."""
    called: dict[tf.Graph, set[str]] = {}
    for op in ops:
        if names := _functions_of(op.node_def):
            called.setdefault(op.graph, set()).update(names)
    for graph, names in called.items():
        functions = {function.signature.name: function.node_def for function in graph.as_graph_def().library.function}
        front, seen = list(names), set()
        while front:
            name = front.pop()
            if name in seen:
                continue
            seen.add(name)
            for node in functions.get(name, ()):
                yield node
                front.extend(_functions_of(node))


def _functions_of(node: Any) -> set[str]:
    """Returns the names of the functions that a node (NodeDef) refers to."""
    values = node.attr.values()
    return {value.func.name for value in values if value.HasField("func")} | {
        function.name for value in values for function in value.list.func
    }


def graphs_of_results(op: tf.Operation) -> list[tf.Graph]:
    """Returns the graphs whose outputs are an operation's results: of a function, of branches, or of a loop's body.

    The inputs of these graphs are the operation's last inputs.
    """
    values = [op.node_def.attr[name] for name in _RESULTS.get(op.type, ())]
    names = [function.name for value in values for function in (value.list.func or [value.func])]
    return [graph for name in names if (graph := _graph_of_function(op.graph, name)) is not None]


def _graph_of_function(graph: Any, name: str) -> tf.Graph | None:
    """Returns the graph of a function that is known in `graph` or in a graph around it; None for one without graph."""
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return getattr(function, "graph", None)
        graph = getattr(graph, "outer_graph", None)
    return None


def stems_from(
    op: tf.Operation,
    wanted: Callable[[tf.Operation], bool],
    unrelated: set[tf.Operation],
    passed: Callable[[tf.Operation], bool] = lambda _: False,
) -> bool:
    """Returns whether an operation is `wanted`, or is computed from a wanted one.

    The search leaves the branches of conditionals and the bodies of loops through the tensors that these capture. It
    doesn't look through variables: a value that was assigned to a variable earlier is not known.

    Args:
      op: the operation where the search begins.
      wanted: tells whether an operation is one of those searched for.
      unrelated: operations that are known not to be computed from a wanted one. The search adds what it finds out.
        Pass the same set to all calls with the same `wanted`; then no part of a graph is searched twice.
      passed: tells at which operations the search stops.
    """
    seen: set[tf.Operation] = set()
    front = [op]
    while front:
        op = front.pop()
        if op in seen or op in unrelated:
            continue
        if wanted(op):
            return True
        seen.add(op)
        if not passed(op):
            front.extend(_sources(op))
    unrelated |= seen
    return False


def captured(op: tf.Operation) -> Any:
    """Returns the tensor of the graph around a function, branch or body that its placeholder stands for, or None."""
    if op.type == "Placeholder":
        for outer, inner in getattr(op.graph, "captures", ()):
            if inner.op is op:
                return outer
    return None


def _sources(op: tf.Operation) -> Iterator[tf.Operation]:
    yield from (tensor.op for tensor in op.inputs)
    if op.type == "StackPopV2":
        yield from _pushed(op.inputs[0].op)
    outer = captured(op)
    if hasattr(outer, "op"):
        yield outer.op


def _pushed(stack: tf.Operation) -> Iterator[tf.Operation]:
    """Yields the operations that push onto a stack, where a loop of TensorFlow 1 keeps values for the backward pass.

    Args:
      stack: the operation that gives the handle, perhaps through Enter and Switch operations of the backward loop.
    """
    while stack.type != "StackV2" and stack.inputs:
        stack = stack.inputs[0].op
    front = [stack]
    while front:
        for consumer in (consumer for tensor in front.pop().outputs for consumer in tensor.consumers()):
            if consumer.type == "StackPushV2":
                yield consumer
            elif consumer.type in ("Enter", "Switch", "RefEnter", "RefSwitch"):
                front.append(consumer)
