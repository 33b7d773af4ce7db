"""Checkpoints of a job: all workers write them together, and plain TensorFlow can read them.

A save is one run of the graph on every worker, at the same step:

1. Every worker writes its part of each table to files of its own beside the target, piece by piece: a contiguous range
   of a sharded table or slot (shard_saveables.py), and its rows of a dynamic table (table_saveables.py). Worker 0 also
   writes the replicated variables.
2. When all workers have written, worker 0 merges the files' indices beside the target, syncs all files, and renames
   them to the checkpoint's name (tf/checkpoint/commit_op.cc). Before that, the checkpoint does not exist. If a worker
   dies or a machine loses its power, the last complete checkpoint remains.

The result is a TensorFlow V2 checkpoint in which a sharded variable is one tensor of its logical shape. Any number of
workers restores it.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import variables
from tensorflow.python.training import saver as tf_saver
from tensorflow.python.training.saving import saveable_object, saveable_object_util

from lockstep._src.collectives import ordered
from lockstep._src.engine import file_errors
from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.saving import data_positions, shard_saveables
from lockstep._src.saving import table_saveables as dynamic_tables
from lockstep._src.saving.chain import end_chain
from lockstep._src.saving.data_positions import PositionSaveable, is_position
from lockstep._src.saving.shard_saveables import ShardSaveable
from lockstep._src.tables import sharded
from lockstep._src.tables.dynamic import tensorflow1_adapter


class _GatheredSaveable(saveable_object.SaveableObject):
    """A sharded float16 variable, saved as one tensor, because TensorFlow cannot read slices of that type.

    Worker 0 writes the whole table, and every worker reads it whole, so it must fit into the memory of each.

    Args:
      variable: the local shard, [local rows, ...].
      name: the logical tensor's name in the checkpoint.
    """

    def __init__(self, variable: tf.Variable, name: str) -> None:
        self._shard = sharded.shard_of(variable)
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
      changes: saves only the changes of dynamic tables since the last checkpoint.
      track: makes dynamic tables record their changes, for incremental checkpoints.
    """

    def __init__(self, write_version: Any, changes: bool = False, track: bool = False) -> None:
        super().__init__(write_version)
        self._tables = {"changes": changes, "track": track}

    def _build_internal(self, names_to_saveables: Any, **kwargs: Any) -> Any:
        tables, names_to_saveables = dynamic_tables.take_tables(names_to_saveables)
        if not isinstance(names_to_saveables, dict):
            names_to_saveables = saveable_object_util.op_list_to_dict(names_to_saveables)
        # Sorted by name, because this order is the same on every worker.
        named = {name: _saveable(name, names_to_saveables[name]) for name in sorted(names_to_saveables)}
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
        if others or not (tables or shards):
            parts.append(super()._AddRestoreOps(filename_tensor, others, *args, **kwargs))
        if shards:
            parts.append(shard_saveables.restore(shards, filename_tensor))
        if tables:
            parts.append(dynamic_tables.restore(tables, filename_tensor, **self._tables))
        return parts[0] if len(parts) == 1 else tf.group(*parts, name="restore_all")

    def _GroupByDevices(self, saveables: Iterable[Any]) -> list[tuple[str, list[Any]]]:  # noqa: N802
        # All in one group: each worker writes one file and restores in one operation, for all its devices.
        return [("", list(saveables))]

    def _save_together(self, prefix: tf.Tensor, saveables: list[Any]) -> tf.Tensor:
        ctx = context
        tables, shards, others = _by_kind(saveables)
        # Every worker writes its own data positions; worker 0 alone writes all others.
        mine = [s for s in others if isinstance(s, PositionSaveable) or ctx.rank == 0]
        aside = tf.strings.join([prefix, f"_temp{os.sep}"])
        parts = [
            [
                tf.strings.join([aside, f"{kind}-{rank:05d}-of-{ctx.world_size:05d}"])
                for kind in ("part", "shards", "tables")
            ]
            for rank in range(ctx.world_size)
        ]
        own_part, own_shards, own_tables = parts[ctx.rank]
        written = [s.contiguous.op for s in others if isinstance(s, _GatheredSaveable)]
        # Whether this worker has written each of its files.
        wrote = [tf.constant(False)] * 3
        if any(s.specs for s in mine):
            with tf.control_dependencies(written):
                written = [self.save_op(own_part, mine)]
            wrote[0] = tf.constant(True)
        if shards:
            wrote[1] = shard_saveables.write(shards, own_shards)
        if tables:
            writing = dynamic_tables.write(tables, own_tables, **self._tables)
            written = [*written, writing.written]
            wrote[2] = writing.has_rows
        with tf.control_dependencies(written):
            # Only the worker itself knows it (it depends on the tables' sizes), so all workers exchange this fact.
            has_part = tf.stack([wrote])
            has_part = ordered.allgather(has_part, name="save_written") if ctx.world_size > 1 else tf.identity(has_part)
        committed = [has_part.op]
        if ctx.rank == 0:
            with tf.control_dependencies(committed):
                written = [tf.boolean_mask(tf.stack(parts), has_part)]
                strings = tf.strings.join([aside, "strings"])
                written += dynamic_tables.join_strings(tables, [files[2] for files in parts], strings)
            committed = [_merge_and_commit(tf.concat(written, 0), aside, prefix)]
        if ctx.world_size > 1:
            with tf.control_dependencies(committed):
                committed = [ordered.barrier(name="save_merged")]
        if tables:
            with tf.control_dependencies(committed):
                committed = [dynamic_tables.end(tables, writing.link, changes=self._tables["changes"])]
        with tf.control_dependencies(committed):
            return tf.identity(prefix)


def _merge_and_commit(parts: tf.Tensor, aside: tf.Tensor, prefix: tf.Tensor) -> tf.Operation:
    """Merges the files of all workers into one checkpoint, and renames it so that it appears complete.

    Args:
      parts: prefixes of the files, [number of files].
      aside: the folder that holds the files, with a separator at its end.
      prefix: the checkpoint's name.
    """
    merged = tf.strings.join([aside, "merged"])
    with tf.control_dependencies(
        [tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=merged, delete_old_dirs=False)]
    ):
        return ops.lockstep_commit_checkpoint(merged, prefix, tf.size(parts, tf.int64))


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
    return (_GatheredSaveable if variable.dtype.base_dtype == tf.float16 else ShardSaveable)(variable, name)


def _by_kind(saveables: Iterable[Any]) -> tuple[list[dynamic_tables.TableSaveable], list[ShardSaveable], list[Any]]:
    """Returns dynamic tables, shards of tables, and all others."""
    tables, shards, others = [], [], []
    for saveable in saveables:
        is_table, is_shard = isinstance(saveable, dynamic_tables.TableSaveable), isinstance(saveable, ShardSaveable)
        (tables if is_table else shards if is_shard else others).append(saveable)
    return tables, shards, others


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
        with file_errors.raised_on_all(file_errors.not_saved(save_path, kwargs.get("global_step"))):
            tf.io.gfile.makedirs(os.path.dirname(save_path) or ".")
            with data_positions.saving():
                path = save(sess, save_path, **kwargs)
            if context.rank == 0 and path is not None:
                end_chain(tf.compat.as_str(path))
            if state_barrier is not None and not saver._is_empty:
                # When save returns on any worker, tf.train.latest_checkpoint finds the checkpoint on this worker.
                sess.run(state_barrier)
        return path

    return wrapped


def restore_by_name(restore: Callable[..., None]) -> Callable[..., None]:
    """Wraps `Saver.restore` so that errors name the checkpoint that is damaged or cannot be read."""

    @functools.wraps(restore)
    def wrapped(sess: Any, save_path: Any) -> None:
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
