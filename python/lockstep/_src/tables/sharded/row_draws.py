"""Initial values whose rows a worker computes independently: random values, and constants.

TensorFlow's random operations draw each group of elements from a place of their own in the generator's stream, so any
rows can be drawn without the others. `recipe_of` finds such an operation in the graph of an initial value, together
with the elementwise steps that follow it. `draw` then computes a worker's rows, with the bits that TensorFlow computes
for the whole table on a CPU. Each step rounds, as its operation does. TensorFlow's graph optimizer may compute two
products by constants as one; a recipe does not.

The parts of a recipe:

| part | operations |
| --- | --- |
| source, random | `RandomUniform`, `RandomStandardNormal`, `TruncatedNormal`, their stateless forms, float types |
| source, constant | `Fill`, `BroadcastTo`, `ZerosLike`, `OnesLike`, a `Const` with one value |
| steps | `Add`, `AddV2`, `Mul`, `Sub`, `RealDiv` with an operand that is the same for all rows: a number or a row |
| no effect | `Identity`, `StopGradient` |

A recipe with a seed draws the same values each time, as in the operation's first run. In plain TensorFlow, a
stateful operation continues its stream: a second run of the initializer, or eagerly a second draw with the same seed,
gives other values. Values without any seed differ on each run, and between tables that begin with one tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import func_graph, ops

from lockstep._src.engine import library
from lockstep._src.tables.placement.shard import Shard

_STATEFUL = {"RandomUniform": "uniform", "RandomStandardNormal": "normal", "TruncatedNormal": "truncated_normal"}
_OF_A_KEY = {
    "StatelessRandomUniformV2": "uniform",
    "StatelessRandomNormalV2": "normal",
    "StatelessTruncatedNormalV2": "truncated_normal",
}
_OF_A_SEED = {
    "StatelessRandomUniform": "uniform",
    "StatelessRandomNormal": "normal",
    "StatelessTruncatedNormal": "truncated_normal",
}
# By type of operation: the step if the table is the first operand, and if it is the second one.
_STEPS = {
    "Add": ("add", "add"),
    "AddV2": ("add", "add"),
    "Mul": ("mul", "mul"),
    "Sub": ("sub", "reverse_sub"),
    "RealDiv": ("div", "reverse_div"),
}
_APPLY = {
    "add": lambda x, operand: x + operand,
    "mul": lambda x, operand: x * operand,
    "sub": lambda x, operand: x - operand,
    "reverse_sub": lambda x, operand: operand - x,
    "div": lambda x, operand: x / operand,
    "reverse_div": lambda x, operand: operand / x,
}
_NO_EFFECT = ("Identity", "StopGradient")
_GIVEN = ("Placeholder", "PlaceholderWithDefault", "ReadVariableOp", "Variable", "VariableV2")
# The numbers of the algorithm Philox, and of TensorFlow's own choice, which is Philox on a CPU.
_PHILOX = (1, 3)
_UINT64 = (1 << 64) - 1


@dataclasses.dataclass(frozen=True)
class Random:
    """Random values of a whole table.

    Attributes:
      distribution: "uniform", "normal" or "truncated_normal".
      seeds: `seed` and `seed2` of a stateful operation; both 0 if it has no seed. None for a stateless one.
      inputs: of a stateless operation: the key and the counter, or the seed.
    """

    distribution: str
    seeds: tuple[int, int] | None = None
    inputs: tuple[tf.Tensor, ...] = ()


@dataclasses.dataclass(frozen=True)
class Constant:
    """A number or a row that is the value of every row."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How the rows of a table are computed.

    Attributes:
      source: the values that the steps begin with.
      steps: names of elementwise steps, with an operand each: a number, or a row up to broadcasting.
      dtype: the type of the table.
    """

    source: Random | Constant
    steps: tuple[tuple[str, tf.Tensor], ...]
    dtype: tf.DType

    @property
    def tensors(self) -> list[Any]:
        """The tensors that `draw` reads: the source's, then the operands."""
        own = [self.source.value] if isinstance(self.source, Constant) else list(self.source.inputs)
        return own + [operand for _, operand in self.steps]


def recipe_of(whole: tf.Tensor, shape: tf.TensorShape) -> Recipe | None:
    """Returns how the rows of a symbolic tensor are computed; None if they are not independent.

    Args:
      whole: a tensor of the current graph, or of a graph that was traced for it.
      shape: [rows, D...], the shape of the table.
    """
    steps: list[tuple[str, tf.Tensor]] = []
    tensor, source = whole, None
    while source is None:
        op = tensor.op
        # A control input may be an assertion on the values.
        if not tensor.shape.is_fully_defined() or tensor.shape != shape or op.control_inputs:
            return None
        if op.type in _NO_EFFECT:
            tensor = op.inputs[0]
        elif op.type in _STEPS:
            step = _step(op, shape)
            if step is None:
                return None
            name, tensor, operand = step
            steps.append((name, operand))
        else:
            source = _source(op, shape)
            if source is None:
                return None
    recipe = Recipe(source, tuple(reversed(steps)), whole.dtype)
    graph = ops.get_default_graph() if not tf.executing_eagerly() else None
    others = [t for t in recipe.tensors if tf.is_tensor(t) and t.graph is not graph]
    return recipe if _are_copyable(others) else None


def is_given(whole: tf.Tensor) -> bool:
    """Returns whether a symbolic tensor is a value that the program holds anyway: it is fed, or a variable's."""
    while whole.op.type in _NO_EFFECT:
        whole = whole.op.inputs[0]
    return whole.op.type in _GIVEN


def outside(recipe: Recipe, graph: func_graph.FuncGraph) -> Recipe | None:
    """Returns a recipe as it is outside of the temporary graph that was traced for it.

    TensorFlow seeds an operation without a seed by the graph's seed and a count of such operations. The temporary graph
    has a count of its own, so the recipe gets the next seed of the place where the table is made.

    Returns None if the traced function does more than the recipe: it has another stateful operation, or it took a seed
    for another purpose.
    """
    source = recipe.source
    has_seeds = isinstance(source, Random) and source.seeds is not None
    if sum(op.op_def.is_stateful for op in graph.get_operations()) != int(has_seeds):
        return None
    if not graph._seed_used:
        return recipe
    if not has_seeds:
        return None
    return dataclasses.replace(recipe, source=dataclasses.replace(source, seeds=tf.compat.v1.get_seed(None)))


def draw(recipe: Recipe, shape: tf.TensorShape, shard: Shard) -> tf.Tensor:
    """Returns a worker's rows [L, D...] of a table of `shape`, in the current graph or eagerly."""
    row_shape = shape.as_list()[1:]
    small = _copies(recipe.tensors)
    operands = [_as_row(operand, row_shape) for operand in small[len(small) - len(recipe.steps) :]]
    names = [name for name, _ in recipe.steps]
    if isinstance(recipe.source, Constant):
        value = _as_row(tf.convert_to_tensor(small[0], recipe.dtype), row_shape)
        for name, operand in zip(names, operands, strict=True):
            value = _APPLY[name](value, operand)
        return library.ops.lockstep_repeat_row(row=tf.broadcast_to(value, row_shape), num_rows=shard.local_rows)
    key, counter = _key_and_counter(recipe.source, small)
    return library.ops.lockstep_initial_rows(
        key=key,
        counter=counter,
        operands=operands,
        dtype=recipe.dtype,
        steps=names,
        distribution=recipe.source.distribution,
        rank=shard.rank,
        world_size=shard.world_size,
        row_shape=row_shape,
        **shard.attributes,
    )


def _step(op: tf.Operation, shape: tf.TensorShape) -> tuple[str, tf.Tensor, tf.Tensor] | None:
    """Returns the name of a step, the tensor that it changes, and the operand; None if no operand is a row."""
    x, y = op.inputs
    of_x, of_y = _STEPS[op.type]
    if x.shape == shape and _is_row(y, shape):
        return of_x, x, y
    if y.shape == shape and _is_row(x, shape):
        return of_y, y, x
    return None


def _source(op: tf.Operation, shape: tf.TensorShape) -> Random | Constant | None:
    if op.type in _STATEFUL:
        return Random(_STATEFUL[op.type], (op.get_attr("seed"), op.get_attr("seed2")))
    if op.type in _OF_A_KEY:
        _, key, counter, algorithm = op.inputs
        is_philox = algorithm.op.type == "StatelessRandomGetAlg" or tf.get_static_value(algorithm) in _PHILOX
        return Random(_OF_A_KEY[op.type], inputs=(key, counter)) if is_philox else None
    if op.type in _OF_A_SEED:
        return Random(_OF_A_SEED[op.type], inputs=(op.inputs[1],))
    if op.type == "Fill":
        return Constant(op.inputs[1])
    if op.type == "BroadcastTo" and _is_row(op.inputs[0], shape):
        return Constant(op.inputs[0])
    if op.type in ("ZerosLike", "OnesLike"):
        return Constant(np.array(op.type == "OnesLike", op.outputs[0].dtype.as_numpy_dtype))
    if op.type == "Const":
        return _constant(op.node_def.attr["value"].tensor)
    return None


def _constant(proto: Any) -> Constant | None:
    """Returns the value of a `Const` that stores one element for the whole tensor, as TensorFlow's `tf.zeros` does."""
    values = [values for field, values in proto.ListFields() if field.name.endswith("_val")]
    if proto.tensor_content or len(values) > 1 or any(len(v) > 1 for v in values):
        return None
    one = type(proto)()
    one.CopyFrom(proto)
    one.tensor_shape.Clear()
    return Constant(tf.make_ndarray(one))


def _is_row(tensor: tf.Tensor, shape: tf.TensorShape) -> bool:
    """Returns whether a tensor, broadcast to a table's shape, has equal rows."""
    dims = tensor.shape
    if not dims.is_fully_defined() or dims.rank > shape.rank or (dims.rank == shape.rank and dims[0] != 1):
        return False
    trailing = dims.as_list()[1:] if dims.rank == shape.rank else dims.as_list()
    return all(d in (1, s) for d, s in zip(reversed(trailing), reversed(shape.as_list()), strict=False))


def _as_row(tensor: tf.Tensor, row_shape: Sequence[int]) -> tf.Tensor:
    """Returns a tensor for which `_is_row` holds as a scalar or as a row."""
    if tensor.shape.num_elements() == 1:
        return tf.reshape(tensor, [])
    if tensor.shape.rank > len(row_shape):
        tensor = tf.squeeze(tensor, 0)
    return tensor if tensor.shape == row_shape else tf.broadcast_to(tensor, row_shape)


def _key_and_counter(source: Random, inputs: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the key [1] and the counter [2] of the generator with which TensorFlow would draw."""
    if source.seeds is None:
        if len(source.inputs) == 2:
            return inputs[0], inputs[1]
        return tuple(tf.raw_ops.StatelessRandomGetKeyCounter(seed=inputs[0]))
    if source.seeds == (0, 0):
        # Drawn on each run: the graph is the same on all workers, and each run differs.
        drawn = tf.raw_ops.RandomUniformInt(
            shape=[3],
            minval=tf.constant(tf.int64.min, tf.int64),
            maxval=tf.constant(tf.int64.max, tf.int64),
            seed=0,
            seed2=0,
        )
        drawn = tf.bitcast(drawn, tf.uint64)
        return drawn[:1], drawn[1:]
    seed, seed2 = (number & _UINT64 for number in source.seeds)
    return tf.constant([seed], tf.uint64), tf.constant([0, seed2], tf.uint64)


def _externals(graph: tf.Graph) -> dict[int, tf.Tensor]:
    """Returns the tensors that a traced graph captures, by id of the placeholders that stand for them."""
    captures = graph.captures if isinstance(graph, func_graph.FuncGraph) else []
    return {id(internal): external for external, internal in captures}


def _are_copyable(tensors: Iterable[tf.Tensor]) -> bool:
    """Returns whether `_copies` can copy the operations of these tensors into another graph."""
    todo, seen = list(tensors), set()
    while todo:
        tensor = todo.pop()
        op = tensor.op
        if id(tensor) in _externals(op.graph) or op in seen:
            continue
        seen.add(op)
        # The functions of control flow belong to the traced graph.
        calls = any(a.HasField("func") or a.list.func for a in op.node_def.attr.values())
        if calls or op.control_inputs or op.op_def.is_stateful or op.type == "Placeholder":
            return False
        todo += op.inputs
    return True


def _copies(tensors: Sequence[Any]) -> list[Any]:
    """Returns tensors of a traced graph as tensors of the current graph, or as eager ones."""

    def copied() -> list[Any]:
        graph, done = ops.get_default_graph(), {}

        def copy(tensor: Any) -> Any:
            # Numbers, eager tensors, and tensors of the current graph stay.
            if not tf.is_tensor(tensor) or not hasattr(tensor, "op") or isinstance(tensor, ops.EagerTensor):
                return tensor
            op = tensor.op
            if op.graph is graph:
                return tensor
            external = _externals(op.graph).get(id(tensor))
            if external is not None:
                return external
            if op not in done:
                attributes = {k: v for k, v in op.node_def.attr.items() if not k.startswith("_")}
                inputs = [copy(t) for t in op.inputs]
                done[op] = graph.create_op(op.type, inputs, [o.dtype for o in op.outputs], attrs=attributes)
            return done[op].outputs[tensor.value_index]

        return [copy(tensor) for tensor in tensors]

    if not tf.executing_eagerly():
        return copied()
    # Most operands are numbers. They need no function.
    known = [t if not _is_symbolic(t) else tf.get_static_value(t) for t in tensors]
    if all(value is not None for value in known):
        return [tf.constant(v, t.dtype) if _is_symbolic(t) else v for v, t in zip(known, tensors, strict=True)]
    return list(tf.function(lambda: [tf.convert_to_tensor(t) for t in copied()], autograph=False)())


def _is_symbolic(value: Any) -> bool:
    return tf.is_tensor(value) and not isinstance(value, ops.EagerTensor)
