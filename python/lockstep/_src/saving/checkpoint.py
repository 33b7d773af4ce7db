"""Checkpoints of a job: all workers write them together, and plain TensorFlow can read them.

A save is one run of an operation on every worker, at the same step (tf/checkpoint/save_job.h):

1. Every worker writes its part of each table to a file of its own beside the target, piece by piece. This is a
   contiguous range of a sharded table or slot (shard_saveables.py), and its rows of a dynamic table
   (table_saveables.py). Worker 0 also writes the replicated variables.
2. When all workers have written, worker 0 merges the files' indices beside the target, syncs all files, and renames
   them to the checkpoint's name (tf/checkpoint/commit.h). Before that, the checkpoint does not exist. If a worker
   dies or a machine loses its power, the last complete checkpoint remains.

The result is a TensorFlow V2 checkpoint in which a sharded variable is one tensor of its logical shape. Any number of
workers restores it.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint_management
from tensorflow.python.lib.io import file_io
from tensorflow.python.ops import variables
from tensorflow.python.training import saver as tf_saver
from tensorflow.python.training.saving import saveable_object, saveable_object_util

from lockstep._src.collectives import ordered
from lockstep._src.engine import background, file_errors
from lockstep._src.engine.context import context
from lockstep._src.engine.host_memory import is_on_host
from lockstep._src.engine.library import ops
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.saving import data_positions, initial_tables, shard_saveables
from lockstep._src.saving import table_saveables as dynamic_tables
from lockstep._src.saving.chain import end_chain
from lockstep._src.saving.data_positions import PositionSaveable, is_position
from lockstep._src.saving.shard_saveables import ShardSaveable
from lockstep._src.tables import sharded
from lockstep._src.tables.dynamic import tensorflow1_adapter

# The name of a saver's operation that saves in the background, beside the one that waits.
BACKGROUND = "save_in_background"


class _GatheredSaveable(saveable_object.SaveableObject):
    """A sharded float16 variable, saved as one tensor, because TensorFlow cannot read slices of that type.

    Worker 0 writes the whole table, and every worker reads it whole, so it must fit into the memory of each.

    Args:
      variable: the local shard, [local rows, ...].
      name: the logical tensor's name in the checkpoint.
    """

    def __init__(self, variable: tf.Variable, name: str) -> None:
        shard = sharded.shard_of(variable)
        assert shard is not None
        self._shard = shard
        with tf.name_scope("lay_out"):
            local = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
            self.contiguous = sharded.gather_table(local, self._shard)
        super().__init__(variable, [saveable_object.SaveSpec(self.contiguous, "", name, variable.dtype)], name)

    def restore(self, restored_tensors: list[tf.Tensor], restored_shapes: list[Any] | None) -> tf.Operation:
        """Assigns the rows that this worker owns."""
        del restored_shapes
        whole = tf.ensure_shape(restored_tensors[0], (self._shard.rows, *self.op.shape[1:].as_list()))
        return tf.raw_ops.AssignVariableOp(resource=self.op.handle, value=self._shard.pick(whole))


class SaverBuilder(tf_saver.BulkSaverBuilder):
    """Builds the save and restore operations of one worker.

    Args:
      write_version: the checkpoint format, as in TensorFlow's builders.
      changes: saves only the changes of tables since the last checkpoint.
      track: makes dynamic tables record their changes, for incremental checkpoints.
    """

    def __init__(self, write_version: Any, changes: bool = False, track: bool = False) -> None:
        super().__init__(write_version)
        self._changes, self._track = changes, track

    def _build_internal(self, names_to_saveables: Any, **kwargs: Any) -> Any:
        tables, names_to_saveables = dynamic_tables.take_tables(names_to_saveables)
        rows, names_to_saveables = shard_saveables.take_of_one_worker(names_to_saveables)
        if not isinstance(names_to_saveables, dict):
            names_to_saveables = saveable_object_util.op_list_to_dict(names_to_saveables)
        # Sorted by name, because this order is the same on every worker.
        named = {name: _saveable(name, names_to_saveables[name]) for name in sorted(names_to_saveables)}
        named.update((name, rows[name]) for name in sorted(rows))
        named.update((name, tables[name]) for name in sorted(tables))
        return super()._build_internal(named, **kwargs)

    def _AddSaveOps(self, filename_tensor: tf.Tensor, saveables: Iterable[Any]) -> tf.Tensor:  # noqa: N802
        return self._save_together(filename_tensor, list(saveables))

    def _AddShardedSaveOps(self, filename_tensor: tf.Tensor, per_device: Any) -> tf.Tensor:  # noqa: N802
        return self._save_together(filename_tensor, [s for _, saveables in per_device for s in saveables])

    def _AddRestoreOps(self, filename_tensor: tf.Tensor, saveables: Iterable[Any], *args: Any, **kwargs: Any) -> Any:  # noqa: N802
        mine = [s for s in saveables if getattr(s, "restored_by_saver", True)]
        tables, shards, others = _by_kind(mine)
        parts = []
        if self._changes:
            replicated, others = _split_replicated(others)
            if replicated:
                parts.append(_restore_replicated(replicated, filename_tensor))
        if others or not (tables or shards or parts):
            parts.append(super()._AddRestoreOps(filename_tensor, others, *args, **kwargs))
        if shards:
            parts.append(shard_saveables.restore(shards, filename_tensor, changes=self._changes))
        if tables:
            parts.append(dynamic_tables.restore(tables, filename_tensor, changes=self._changes, track=self._track))
        return parts[0] if len(parts) == 1 else tf.group(*parts, name="restore_all")

    def _GroupByDevices(self, saveables: Iterable[Any]) -> list[tuple[str, list[Any]]]:  # noqa: N802
        # All in one group: each worker writes one file and restores in one operation, for all its devices.
        return [("", list(saveables))]

    def _save_together(self, prefix: tf.Tensor, saveables: list[Any]) -> tf.Tensor:
        context.ensure_initialized()  # also a job of one worker saves by the engine
        tables, shards, others = _by_kind(saveables)
        # Every worker writes its own data positions; only worker 0 writes the others.
        mine = [s for s in others if isinstance(s, PositionSaveable) or context.rank == 0]
        # All workers take part in the collectives that read what worker 0 writes.
        gathered = [s.contiguous.op for s in others if isinstance(s, _GatheredSaveable)]
        arguments = {
            "prefix": prefix,
            **_variables_and_tensors(mine),
            **shard_saveables.arguments(shards),
            **dynamic_tables.saved(tables, changes=self._changes, track=self._track),
        }
        with tf.control_dependencies(gathered):
            saved = ops.lockstep_save_checkpoint(**arguments, name="save_checkpoint")
            # The same, while the program continues (engine/background.py).
            ops.lockstep_save_checkpoint(**arguments, background=True, name=BACKGROUND)
        return saved


def _variables_and_tensors(saveables: Sequence[Any]) -> dict[str, list[Any]]:
    """Returns the arguments of LockstepSaveCheckpoint for these: resource variables by their handles, others by values.

    The operation reads the values of variables in the host's memory only.
    """
    variables: list[tuple[Any, Any]] = []
    tensors: list[tuple[Any, Any]] = []
    for saveable in saveables:
        is_variable = type(saveable) is saveable_object_util.ResourceVariableSaveable
        by_handle = is_variable and is_on_host(saveable.handle_op.device)
        (variables if by_handle else tensors).extend((saveable, spec) for spec in saveable.specs)
    return {
        "variables": [saveable.handle_op for saveable, _ in variables],
        "own_variable_names": [spec.name for _, spec in variables],
        "own_variable_slices": [spec.slice_spec for _, spec in variables],
        "tensors": [spec.tensor for _, spec in tensors],
        "own_tensor_names": [spec.name for _, spec in tensors],
        "own_tensor_slices": [spec.slice_spec for _, spec in tensors],
    }


def _saveable(name: str, op: Any) -> Any:
    """Returns the saveable for `op`: sharded tables and their slots as slices, data positions per worker, else `op`."""
    if isinstance(op, PositionSaveable):
        return op
    if isinstance(op, saveable_object.SaveableObject) and context.world_size > 1:
        return PositionSaveable(op) if is_position(op) else op
    variables = list(op) if isinstance(op, (list, tuple)) else [op]
    if len(variables) == 1 and sharded.shard_of(variables[0]) is not None:
        return _rows_saveable(variables[0], name)
    return op


def _rows_saveable(variable: tf.Variable, name: str) -> ShardSaveable | _GatheredSaveable:
    shard = shard_saveables.saved_shard_of(variable)
    return _GatheredSaveable(variable, name) if shard is None else ShardSaveable(variable, shard, name)


def _by_kind(saveables: Iterable[Any]) -> tuple[list[dynamic_tables.TableSaveable], list[ShardSaveable], list[Any]]:
    """Returns dynamic tables, shards of tables, and all others."""
    tables: list[dynamic_tables.TableSaveable] = []
    shards: list[ShardSaveable] = []
    others: list[Any] = []
    for saveable in saveables:
        is_table, is_shard = isinstance(saveable, dynamic_tables.TableSaveable), isinstance(saveable, ShardSaveable)
        (tables if is_table else shards if is_shard else others).append(saveable)
    return tables, shards, others


# The types of variables of which an increment may have only the changed rows.
_TYPES_OF_ROWS = (
    *(tf.float32, tf.float64, tf.bfloat16),
    *(tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64),
)


def _split_replicated(saveables: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Returns variables of this job that may have been sharded in a job of another size, and all other saveables.

    The placement of a table depends on the number of workers, and the names of slots do not contain their tables.
    """
    kinds = (saveable_object_util.ResourceVariableSaveable, saveable_object_util.ReferenceVariableSaveable)
    replicated: list[Any] = []
    others: list[Any] = []
    for saveable in saveables:
        may_be_rows = (
            type(saveable) in kinds
            and saveable.specs[0].dtype.base_dtype in _TYPES_OF_ROWS
            and saveable.op.shape.is_fully_defined()
            and _rows_of(saveable) is not None
        )
        (replicated if may_be_rows else others).append(saveable)
    return replicated, others


def _rows_of(saveable: Any) -> tuple[int, int] | None:
    """Returns the number of rows of a variable's tensor in checkpoints, and the variable's first row.

    Returns None if it has no rows, or a partitioner has divided it along another dimension.
    """
    shape = saveable.op.shape.as_list()
    part = saveable.op._save_slice_info if saveable.specs[0].slice_spec else None
    if part is None:
        return (shape[0], 0) if shape else None
    return (part.full_shape[0], part.var_offset[0]) if list(part.full_shape)[1:] == shape[1:] else None


def _restore_replicated(saveables: Sequence[Any], prefix: tf.Tensor) -> tf.Operation:
    """Restores variables from an increment: whole, or the rows that have changed."""
    specs = [saveable.specs[0] for saveable in saveables]
    totals, firsts = zip(*map(_rows_of, saveables), strict=True)
    with tf.device("/CPU:0"):
        restored = ops.lockstep_restore_replicated(
            prefix,
            [spec.tensor for spec in specs],
            names=[spec.name for spec in specs],
            totals=totals,
            firsts=firsts,
            name="restore_replicated",
        )
    assigned = [saveable.restore([value], None) for saveable, value in zip(saveables, restored, strict=True)]
    return tf.group(*assigned, name="assign_replicated")


def save_on_all(save: Callable[..., Any], saver: Any, state_barrier: tf.Operation | None) -> Callable[..., Any]:
    """Wraps `Saver.save`: all workers write the checkpoint, and worker 0 writes the state file and the meta graph."""

    @functools.wraps(save)
    def wrapped(sess: Any, save_path: Any, *args: Any, **kwargs: Any) -> Any:
        # The names of the positional arguments after `save_path`.
        names = ("global_step", "latest_filename", "meta_graph_suffix", "write_meta_graph", "write_state")
        kwargs.update(zip(names, args, strict=False))
        if context.rank != 0:
            kwargs.update(write_meta_graph=False, write_state=False)
        save_path = tf.compat.as_str(save_path)
        background.finish()
        what = file_errors.not_saved(save_path, kwargs.get("global_step"))
        with file_errors.raised_on_all(what):
            tf.io.gfile.makedirs(os.path.dirname(save_path) or ".")
            with data_positions.saving():
                if background.allowed.value and not saver._is_empty:
                    return _save_in_background(save, saver, sess, save_path, what, kwargs)
                path = save(sess, save_path, **kwargs)
            if context.rank == 0 and path is not None:
                end_chain(tf.compat.as_str(path))
            if state_barrier is not None and not saver._is_empty:
                # When save returns on any worker, tf.train.latest_checkpoint finds the checkpoint on this worker.
                sess.run(state_barrier)
        return path

    return wrapped


def take_memory(saver: Any, session: Any) -> None:
    """Takes the memory for copies of saves in the background, which the first save would else take in a step.

    All workers call it together. Savers of other libraries are left alone.
    """
    if not isinstance(getattr(saver, "_builder", None), SaverBuilder) or saver.saver_def is None or saver._is_empty:
        return
    with data_positions.saving():
        session.run(_in_background(saver), {saver.saver_def.filename_tensor_name: ""})


def _in_background(saver: Any) -> str:
    """Returns the name of the tensor that saves in the background."""
    scope, _, _ = saver.saver_def.save_tensor_name.rpartition("/")
    return f"{scope}/{BACKGROUND}:0"


def _save_in_background(
    save: Callable[..., Any], saver: Any, sess: Any, save_path: str, what: str, options: dict[str, Any]
) -> str:
    """Begins a save; worker 0 writes the state file when the checkpoint is complete.

    Args:
      save: `Saver.save` of this saver.
      saver: the saver.
      sess: the session.
      save_path: the prefix of checkpoints, without the step.
      what: a description of a failure.
      options: the other arguments of `Saver.save`.
    """
    write_state, suffix = options.get("write_state", True), options.get("meta_graph_suffix", "meta")
    meta_graph = _meta_graph(saver, sess.graph, options) if options.get("write_meta_graph", True) else None
    waits = saver.saver_def.save_tensor_name
    path = ""

    def start() -> None:
        nonlocal path
        saver.saver_def.save_tensor_name = _in_background(saver)
        try:
            path = tf.compat.as_str(
                save(sess, save_path, **{**options, "write_state": False, "write_meta_graph": False})
            )
        finally:
            saver.saver_def.save_tensor_name = waits

    def announce() -> None:
        if write_state:
            saver._RecordLastCheckpoint(path)
            checkpoint_management.update_checkpoint_state_internal(
                save_dir=os.path.dirname(save_path),
                model_checkpoint_path=path,
                all_model_checkpoint_paths=saver.last_checkpoints,
                latest_filename=options.get("latest_filename"),
                save_relative_paths=saver._save_relative_paths,
            )
            saver._MaybeDeleteOldCheckpoints(meta_graph_suffix=suffix)
            end_chain(path)
        if meta_graph is not None:
            file_io.atomic_write_string_to_file(f"{path}.{suffix}", meta_graph)

    background.begin(what, start, announce)
    return path


def _meta_graph(saver: Any, graph: tf.Graph, options: dict[str, Any]) -> bytes:
    """Returns the content of a checkpoint's `.meta` file. It takes long to make, so the saver keeps it."""
    how = {name: options.get(name, False) for name in ("strip_default_attrs", "save_debug_info")}
    key = (graph, graph.version, tuple(how.values()))
    kept = getattr(saver, "_lockstep_meta_graph", None)
    if kept is None or kept[0] != key:
        with graph.as_default():
            kept = saver._lockstep_meta_graph = (key, saver.export_meta_graph(**how).SerializeToString())
    return kept[1]


def restore_by_name(restore: Callable[..., None]) -> Callable[..., None]:
    """Wraps `Saver.restore` so that errors name the checkpoint that is damaged or cannot be read."""

    @functools.wraps(restore)
    def wrapped(sess: Any, save_path: Any) -> None:
        background.finish()
        with file_errors.while_restoring(save_path):
            restore(sess, save_path)

    return wrapped


# Arguments of a saver, and the options that give their defaults.
_KEEP = {
    "max_to_keep": "keep_checkpoint_max",
    "keep_checkpoint_every_n_hours": "keep_checkpoint_every_n_hours",
}


def _init_as_options_say(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps `Saver.__init__` so that absent arguments are taken from the options."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        for name, option in _KEEP.items():
            if name not in given and getattr(context.options, option) is not None:
                kwargs[name] = getattr(context.options, option)
        original(self, *args, **kwargs)

    return wrapped


def _build_for_the_job(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps `Saver._build` so that a saver saves for the job. A saver that is already built stays unchanged."""

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        old_format = context.world_size == 1 and self._write_version != tf.compat.v1.train.SaverDef.V2
        if not (tf.executing_eagerly() or self._is_built or self.saver_def or self._builder or old_format):
            self._builder = SaverBuilder(self._write_version)
            state_barrier = None
            if context.world_size > 1:
                with tf.name_scope("save"):
                    state_barrier = ordered.barrier(name="save_recorded")
            self.save = save_on_all(self.save, self, state_barrier)
            self.restore = restore_by_name(self.restore)
        original(self, *args, **kwargs)

    return wrapped


def _listed(saved: Any) -> list[Any]:
    return list(saved.values()) if isinstance(saved, dict) else list(saved)


def build_of_tables(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps `Saver._build` outside of scopes: for tables, of which TensorFlow's savers would save a worker's part."""
    for_the_job = _build_for_the_job(original)

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        saved = variables._all_saveable_objects() if self._var_list is None else self._var_list
        has_tables = not tf.executing_eagerly() and (
            bool(dynamic_tables.take_tables(saved)[0]) or any(map(sharded.is_sharded, _listed(saved)))
        )
        (for_the_job if has_tables else original)(self, *args, **kwargs)

    return wrapped


tensorflow1_adapter.hooks.add(lambda interception: interception.replace(symbols.SAVER_BUILD, build_of_tables))
tensorflow1_adapter.hooks.add(initial_tables.intercept)


def intercept_savers(interception: Interception) -> None:
    """Makes all `tf.compat.v1.train.Saver`s that are built in a graph during the interception save for the job.

    A job of one worker, too, writes each checkpoint to a temporary folder, then syncs and renames it.
    """
    interception.replace(symbols.SAVER_INIT, _init_as_options_say)
    interception.replace(symbols.SAVER_BUILD, _build_for_the_job)
    interception.replace(symbols.CHECKPOINT_INITIALIZER, _initialize_rows)


def _initialize_rows(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps the step of `init_from_checkpoint` for one variable: a sharded table reads only this worker's rows."""

    @functools.wraps(original)
    def wrapped(variable: Any, ckpt_file: Any, tensor_name: str, *args: Any, **kwargs: Any) -> None:
        if context.world_size == 1 or sharded.shard_of(variable) is None:
            original(variable, ckpt_file, tensor_name, *args, **kwargs)
            return
        saveable = _rows_saveable(variable, tensor_name)
        if isinstance(saveable, ShardSaveable):
            variable._initializer_op = shard_saveables.restore([saveable], ckpt_file)
            return
        rows = [
            tf.raw_ops.RestoreV2(
                prefix=ckpt_file, tensor_names=[spec.name], shape_and_slices=[spec.slice_spec], dtypes=[spec.dtype]
            )[0]
            for spec in saveable.specs
        ]
        variable._initializer_op = saveable.restore(rows, None)

    return wrapped


class Saver(tf_saver.Saver):
    """A `tf.compat.v1.train.Saver` that saves and restores for the job, inside and outside of scopes.

    It takes the arguments of that class. All workers create it, and all call `save` and `restore` together.
    """

    __init__ = _init_as_options_say(tf_saver.Saver.__init__)
    _build = _build_for_the_job(tf_saver.Saver._build)


def replace_default_saver() -> None:
    """Adds a saver for the job as the graph's default saver, in its collection `SAVERS`, if there is none yet.

    Raises:
      ValueError: the graph has several savers.
      RuntimeError: there are several workers, and the graph's saver saves for one worker only.
    """
    graph = tf.compat.v1.get_default_graph()
    savers = graph.get_collection_ref(tf.compat.v1.GraphKeys.SAVERS)
    if len(savers) > 1:
        raise ValueError(f"replace_default_saver: the graph has {len(savers)} savers, wanted at most one")
    if not savers:
        savers.append(Saver(sharded=True, allow_empty=True))
    elif context.world_size > 1 and not isinstance(savers[0]._builder, SaverBuilder):
        raise RuntimeError(
            "replace_default_saver: the graph's saver was made outside of a scope; make it as hb.train.Saver"
        )
