"""What a tensor of a graph is computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import tensorflow as tf


def stems_from(op: tf.Operation, wanted: Callable[[tf.Operation], bool], unrelated: set[tf.Operation]) -> bool:
    """Whether an operation is `wanted`, or is computed from one that is.

    Looks out of the branches of conditionals and the bodies of loops, at what they take from around them. It doesn't
    look through variables: what was assigned to one earlier is not known.

    Args:
      op: where to begin.
      wanted: tells what is looked for.
      unrelated: operations that are known not to stem from any; grows by what is found out. Keep it over calls with
        the same `wanted`, and no part of a graph is walked through twice.
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
        front.extend(_sources(op))
    unrelated |= seen
    return False


def _sources(op: tf.Operation) -> Iterator[tf.Operation]:
    yield from (tensor.op for tensor in op.inputs)
    if op.type == "Placeholder":
        # In the graph of a branch or body: what it captured from the graph around it.
        for outer, inner in getattr(op.graph, "captures", ()):
            if inner.op is op and hasattr(outer, "op"):
                yield outer.op
