"""The signatures of an updatable SavedModel, with which a running server applies deltas.

| signature | inputs | outputs |
| --- | --- | --- |
| `lockstep_apply_delta` | `prefix`: string scalar, the prefix of a delta's checkpoint | `version`: int64 scalar |
| `lockstep_version` | none | `version`: int64 scalar |

Both consist of stock operations. A delta is read, and compared with the model, before the first update. So a delta that
is damaged, or that builds on another version, changes nothing. The caller makes sure that no two deltas are applied at
once, and that no request runs meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from lockstep._src.saving import delta_files
from lockstep._src.saving.checkpoint_ids import TENSOR
from lockstep._src.saving.row_table import RowTable

_tf1 = tf.compat.v1
_raw = tf.raw_ops

APPLY = "lockstep_apply_delta"
VERSION = "lockstep_version"

# Operations on a resource variable that is only looked up: these, and a whole read whose value nobody uses.
_ROW_READS = {"ResourceGather", "ResourceGatherNd", "VarIsInitializedOp", "AssignVariableOp"}


@dataclasses.dataclass
class _Part:
    """A variable of the graph: all rows of a logical variable, or some rows of a partitioned one."""

    variable: tf.Variable
    first: int
    # Whether the rows change in place. TensorFlow then copies the variable at each later read of the whole.
    in_place: bool


class Updates:
    """The state of a model that deltas change: its variables, its dynamic tables and its version.

    Args:
      variables: the model's global variables, before any other operation than the model's reads them.
      tables: the model's dynamic tables.
      version: the version of the values that the SavedModel has.

    Raises:
      ValueError: a variable is partitioned by another dimension than the first.
    """

    def __init__(self, variables: Sequence[tf.Variable], tables: Sequence[RowTable], version: int) -> None:
        self._tables = {table.name: table for table in tables}
        self._parts: dict[str, list[_Part]] = {}
        self.variables: dict[str, tuple[list[int], tf.DType]] = {}
        for variable in variables:
            self._add(variable)
        self.tables = {table.name: (table.dim, table.key_dtype) for table in tables}
        with tf.name_scope(""):
            self._version = resource_variable_ops.ResourceVariable(
                initial_value=lambda: tf.constant(version, tf.int64),
                trainable=False,
                collections=[_tf1.GraphKeys.LOCAL_VARIABLES],
                name="lockstep_version",
            )
        self.initializer: tf.Operation = self._version.initializer

    def _add(self, variable: tf.Variable) -> None:
        name, shape, first = variable.op.name, variable.shape.as_list(), 0
        part = variable._get_save_slice_info()  # not None for a part of a partitioned variable
        if part is not None:
            name, shape, first = part.full_name, list(part.full_shape), part.var_offset[0]
            if list(part.var_shape)[1:] != shape[1:]:
                raise ValueError(
                    f"export: variable {name!r} {shape} is partitioned in parts of {list(part.var_shape)}; with "
                    "updatable=True wanted parts of whole rows"
                )
        self.variables[name] = (shape, variable.dtype.base_dtype)
        self._parts.setdefault(name, []).append(_Part(variable, first, not _is_read_whole(variable)))

    def signatures(self) -> dict[str, Any]:
        """Builds the two signatures."""
        with tf.name_scope("lockstep_delta"):
            prefix = _tf1.placeholder(tf.string, [], name="prefix")
            applied = {"version": self._apply(prefix)}
            current = {"version": tf.identity(self._version.read_value())}
        return {APPLY: _signature({"prefix": prefix}, applied), VERSION: _signature({}, current)}

    def _apply(self, prefix: tf.Tensor) -> tf.Tensor:
        delta = self._read(prefix)
        checks = [self._check_order(prefix, delta[TENSOR]), *self._check_rows(prefix, delta)]
        with tf.control_dependencies(checks):
            updates = [update for name in self.variables for update in self._update(name, delta)]
            for name, table in self._tables.items():
                keys, values = delta[delta_files.changed_keys(name)], delta[delta_files.changed_values(name)]
                updates.append(table.update(delta[delta_files.removed_keys(name)], keys, values))
        with tf.control_dependencies(updates):
            version = delta[TENSOR][0]
            assigned = self._version.assign(version, read_value=False)
        with tf.control_dependencies([assigned]):
            return tf.identity(version, name="version")

    def _read(self, prefix: tf.Tensor) -> dict[str, tf.Tensor]:
        """Reads all tensors of a delta, by one operation, so that each update depends on all of them."""
        wanted: dict[str, tuple[tf.DType, list[int | None]]] = {TENSOR: (tf.int64, [2])}
        for name, (shape, dtype) in self.variables.items():
            if shape:
                wanted[delta_files.changed_ids(name)] = (tf.int64, [None])
                wanted[delta_files.changed_values(name)] = (dtype, [None, *shape[1:]])
            else:
                wanted[name] = (dtype, [])
        for name, (dim, key_dtype) in self.tables.items():
            wanted[delta_files.changed_keys(name)] = (key_dtype, [None])
            wanted[delta_files.changed_values(name)] = (tf.float32, [None, dim])
            wanted[delta_files.removed_keys(name)] = (key_dtype, [None])
        with tf.device("CPU:0"):
            read = _raw.RestoreV2(
                prefix=prefix,
                tensor_names=list(wanted),
                shape_and_slices=[""] * len(wanted),
                dtypes=[dtype for dtype, _ in wanted.values()],
            )
        shaped = [tf.ensure_shape(value, shape) for value, (_, shape) in zip(read, wanted.values(), strict=True)]
        # A wrong shape of any tensor is an error before all updates.
        with tf.control_dependencies(shaped):
            return {name: tf.identity(value) for name, value in zip(wanted, shaped, strict=True)}

    def _check_order(self, prefix: tf.Tensor, ids: tf.Tensor) -> tf.Operation:
        version = self._version.read_value()
        has, builds_on, model = (tf.strings.as_string(number) for number in (ids[0], ids[1], version))
        return _check(
            tf.equal(ids[1], version),
            *("delta ", prefix, " has version ", has, " and builds on version ", builds_on),
            *(", but the model has version ", model, "; apply the deltas in their order"),
        )

    def _check_rows(self, prefix: tf.Tensor, delta: dict[str, tf.Tensor]) -> list[tf.Operation]:
        """Compares the numbers of rows and keys, so that no update can fail after another one was made."""
        checks = []
        for name, (shape, _) in self.variables.items():
            if shape:
                ids, values = delta[delta_files.changed_ids(name)], delta[delta_files.changed_values(name)]
                fits = tf.reduce_all((ids >= 0) & (ids < shape[0])) & tf.equal(tf.size(ids), tf.shape(values)[0])
                what = f" has rows of variable {name} that are not among its {shape[0]} rows, or more rows than ids"
                checks.append(_check(fits, "delta ", prefix, what))
        for name in self.tables:
            keys, values = delta[delta_files.changed_keys(name)], delta[delta_files.changed_values(name)]
            fits = tf.equal(tf.size(keys), tf.shape(values)[0])
            checks.append(_check(fits, "delta ", prefix, f" has other keys than rows of table {name}"))
        return checks

    def _update(self, name: str, delta: dict[str, tf.Tensor]) -> list[Any]:
        shape, _ = self.variables[name]
        if not shape:
            return [_tf1.assign(self._parts[name][0].variable, delta[name])]
        ids, values = delta[delta_files.changed_ids(name)], delta[delta_files.changed_values(name)]
        return [_update_rows(part, *_rows_of(part, ids, values, shape[0])) for part in self._parts[name]]


def _check(fits: tf.Tensor, *sentence: Any) -> tf.Operation:
    """Returns an operation that fails with a sentence, made of strings and string tensors, unless `fits`.

    Its error begins with "assertion failed: [<sentence>]". TensorFlow's Python puts "Graph execution error:" and the
    place in the graph before it.
    """
    return _raw.Assert(condition=fits, data=[tf.strings.join(sentence)])


def _signature(inputs: dict[str, tf.Tensor], outputs: dict[str, tf.Tensor]) -> Any:
    infos = [{k: _tf1.saved_model.build_tensor_info(v) for k, v in given.items()} for given in (inputs, outputs)]
    return _tf1.saved_model.build_signature_def(*infos, tf.saved_model.PREDICT_METHOD_NAME)


def _rows_of(part: _Part, ids: tf.Tensor, values: tf.Tensor, rows: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the changed rows of a part, with their numbers in it."""
    count = part.variable.shape.as_list()[0]
    if count == rows:
        return ids, values
    own = tf.where((ids >= part.first) & (ids < part.first + count))[:, 0]
    return tf.gather(ids, own) - part.first, tf.gather(values, own)


def _update_rows(part: _Part, ids: tf.Tensor, values: tf.Tensor) -> Any:
    if part.in_place:
        return _tf1.scatter_update(part.variable, ids, values)
    present = part.variable.read_value()  # an operation of its own, which runs after the checks
    return _tf1.assign(part.variable, tf.tensor_scatter_nd_update(present, ids[:, tf.newaxis], values))


def _is_read_whole(variable: tf.Variable) -> bool:
    """Returns whether the model may read the whole variable, and not only rows of it."""
    if not resource_variable_ops.is_resource_variable(variable):
        return True
    for op in variable.handle.consumers():
        if op.type == "ReadVariableOp":
            if op.outputs[0].consumers():
                return True
        elif op.type not in _ROW_READS:
            return True
    return False
