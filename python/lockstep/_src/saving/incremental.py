"""Incremental checkpoints: the changes of tables between two full checkpoints.

An increment is a TensorFlow checkpoint. It has the keys of each dynamic table that were seen or changed since the
previous checkpoint, and the keys that were removed (tf/checkpoint/table_layout.h). It has the rows of each sharded
table that differ from the previous checkpoint (tf/checkpoint/saved_table.h). It has all other variables whole.
Increments are in a folder of their own.

    <directory>/model.ckpt-1000.*                                  a full checkpoint
    <directory>/.incremental_checkpoint/model.ckpt-1000-to-1100.*  the changes until step 1100
    <directory>/.incremental_checkpoint/model.ckpt-1000-to-1200.*  the changes from there until step 1200
    <directory>/.incremental_checkpoint/chain.json                 the full checkpoint, and its increments in order

An increment never takes a name that is already in `chain.json`. A second increment at the same step is called
`model.ckpt-1000-to-1200-2`, after its place in the chain.

Every checkpoint has a number. An increment also has the number of the checkpoint on which it builds, and each table
knows the number of the checkpoint that it holds. If a checkpoint of the chain is missing or was replaced, the restore
therefore fails with an error that names it; the names of the files do not matter.

Like any checkpoint, an increment is complete or absent. It becomes valid when `chain.json` lists it; this file is
written and synced after the increment. The next full checkpoint from any saver ends the chain. When a chain on the new
checkpoint begins, all other increments of the folder are removed: the old chain's increments, and unlisted ones that a
killed worker has left.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import variables
from tensorflow.python.training import saver as tf_saver

from lockstep._src.collectives import agreement, ordered
from lockstep._src.engine import background, file_errors
from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep._src.saving import checkpoint, checkpoint_ids, latest
from lockstep._src.saving.chain import FOLDER, Chain, increments_on
from lockstep._src.saving.shard_saveables import saved_shard_of
from lockstep._src.saving.table_saveables import take_tables
from lockstep._src.tables import dynamic

_log = logging.getLogger("lockstep")
_tf1 = tf.compat.v1
_gfile = tf.io.gfile


class IncrementalSaver:
    """A saver of full checkpoints and increments of the current graph. All workers use it together.

    Args:
      saver: the saver for full checkpoints, or a function that returns it; None for a saver of its own.
      full_every: one of this many checkpoints is full, which limits the length of the chain. None: a checkpoint is full
        only if it is the first, or if the changes since the last checkpoint are unknown. They are never known if the
        graph has neither dynamic nor sharded tables: increments are then only restored.

    Raises:
      ValueError: `full_every` is less than 1.
    """

    def __init__(self, saver: Any = None, full_every: int | None = None) -> None:
        if full_every is not None and full_every < 1:
            raise ValueError(f"IncrementalSaver: full_every is {full_every}, wanted 1 or more")
        tables, shards = dynamic.dynamic_tables(), _sharded_variables()
        if not tables and not shards and context.rank == 0:
            # A job of another size may have had sharded tables in place of replicated ones, and saved increments.
            _log.warning(
                "the graph has no dynamic or sharded tables, whose changes increments record: each checkpoint "
                "is a full one"
            )
        self._full: Callable[[], Any] = saver if callable(saver) else lambda: saver
        if saver is None:
            own = checkpoint.Saver()
            self._full = lambda: own
        self._every = full_every
        self._checkpoint_ids = ops.lockstep_track_tables(
            [table.handle for table in tables], [variable.handle for variable in shards]
        )
        self._names = [table.logical_name for table in tables] + [variable.op.name for variable in shards]
        self._was_full = self._has_warned = False
        self._changes = _saver_of_changes()
        self._chain: Chain | None = None  # ends with the checkpoint self._checkpoint_id; only on worker 0
        self._checkpoint_id: int | None = None

    def track(self, session: Any) -> None:
        """Makes the tables record their changes from now on; to be called in a new session."""
        background.finish()  # rows that it has read would count as unchanged
        session.run(self._checkpoint_ids)

    def save(self, session: Any, save_path: str, global_step: int) -> str:
        """Saves an increment, or a full checkpoint if the chain cannot continue.

        The checkpoint becomes a part of the chain when it is complete. In a session's hook that may be later.

        Args:
          session: the session.
          save_path: the prefix of full checkpoints, to which the step is added. Increments go to a folder beside them.
          global_step: the step.

        Returns:
          The prefix of the saved checkpoint.
        """
        with file_errors.raised_on_all(f"incremental checkpoint of {save_path} cannot be saved"):
            return self._save(session, save_path, global_step)

    def _save(self, session: Any, save_path: str, global_step: int) -> str:
        background.finish()  # it changes the ids
        ids_here = session.run(self._checkpoint_ids).tolist()
        self._warn_of_unsaved(ids_here)
        of_workers = agreement.gather_values(ids_here, "incremental_ids")
        # 0 means that the changes of a table are unknown.
        found = {checkpoint_id for row in of_workers for checkpoint_id in row}
        checkpoint_id = found.pop() if len(found) == 1 else 0
        directory = os.path.dirname(save_path)
        chain = self._continued(checkpoint_id, directory) if context.rank == 0 else None
        name = None if chain is None else chain.next_name(int(global_step))
        name = agreement.from_chief(name, "incremental_name")
        if name is None:
            path = self._full().save(session, save_path, global_step=global_step)
        else:
            path = os.path.join(directory, FOLDER, name)
            self._changes.save(session, path, write_meta_graph=False, write_state=False)
        self._was_full = name is None
        if context.rank == 0:
            background.when_done(lambda: self._record(directory, path, name))
        return path

    def _record(self, directory: str, path: str, name: str | None) -> None:
        """Adds a complete checkpoint to the chain: the increment `name`, or a full one, with which the chain begins."""
        if name is None:
            self._begin_chain(directory, os.path.basename(path))
        else:
            assert self._chain is not None  # it gave the name
            self._chain.increments.append(name)
            self._chain.write(directory)
        self._checkpoint_id = _id_of(path)

    def _warn_of_unsaved(self, found: list[int]) -> None:
        """Warns once of tables whose changes are not known even after a full checkpoint: its saver omits them."""
        if context.rank != 0 or not self._was_full:
            return
        self._was_full = False
        unsaved = [name for name, known in zip(self._names, found, strict=True) if not known]
        if unsaved and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "the saver of full checkpoints does not save %s: no increment can build on them, so each checkpoint is "
                "a full one",
                ", ".join(unsaved),
            )

    def restore(self, session: Any, save_path: str) -> None:
        """Restores a full checkpoint, and then the increments that build on it.

        Raises:
          tf.errors.DataLossError: an increment is missing, or damaged.
          tf.errors.FailedPreconditionError: an increment builds on another checkpoint than the one before it.
        """
        self._full().restore(session, save_path)
        self.restore_increments(session, save_path)

    def restore_increments(self, session: Any, save_path: str) -> list[str]:
        """Restores the increments on the full checkpoint that the session already restored; returns their prefixes."""
        background.finish()  # it may be one of them
        directory = os.path.dirname(save_path)
        found: list[str] = []
        what = f"restore of the increments on {save_path}"
        agreement.on_chief(lambda: found.extend(increments_on(save_path)), what, "incremental_list")
        found = agreement.from_chief(found, "incremental_chain")
        chain = Chain(os.path.basename(save_path), found)
        before = save_path
        for number, prefix in enumerate(chain.prefixes(directory), 1):
            if not _gfile.exists(f"{prefix}.index"):
                raise tf.errors.DataLossError(
                    None, None, f"{prefix}.index is missing: number {number} of {len(found)} that build on {save_path}"
                )
            if not self._names:  # tables compare the numbers themselves
                _check_follows(before, prefix)
            self._changes.restore(session, prefix)
            before = prefix
        return chain.prefixes(directory)

    def _continued(self, checkpoint_id: int, directory: str) -> Chain | None:
        """Returns, on worker 0, the chain that the next checkpoint may continue; None if it must be a full one."""
        if not checkpoint_id:
            return None
        if checkpoint_id != self._checkpoint_id or self._chain is None:
            # Another saver saved the last checkpoint. The chain can begin with it if it was the session's saver.
            others = getattr(self._full(), "last_checkpoints", None)
            if not others or os.path.dirname(others[-1]) != directory or _id_of(others[-1]) != checkpoint_id:
                return None
            self._begin_chain(directory, os.path.basename(others[-1]))
        chain = self._chain
        if chain is None or (self._every is not None and len(chain.increments) + 1 >= self._every):
            return None
        return chain

    def _begin_chain(self, directory: str, base: str) -> None:
        """Starts a chain on another full checkpoint, and removes all other increments."""
        if context.rank != 0:
            return
        self._chain = Chain(base, [])
        self._chain.write(directory)
        folder = os.path.join(directory, FOLDER)
        for name in _gfile.listdir(folder):
            path = os.path.join(folder, name)
            if "-to-" not in name:
                continue
            if _gfile.isdir(path):
                _gfile.rmtree(path)
            else:
                _gfile.remove(path)


def _id_of(path: str) -> int | None:
    """Returns the number of a full checkpoint; None if it has none or does not exist."""
    found = checkpoint_ids.ids_of(path) if _gfile.exists(f"{path}.index") else None
    return found and found[0]


def _check_follows(before: str, prefix: str) -> None:
    """Raises FailedPreconditionError if an increment does not build on the checkpoint before it."""
    built_on, own = checkpoint_ids.ids_of(before), checkpoint_ids.ids_of(prefix)
    if built_on is not None and own is not None and own[1] != built_on[0]:
        raise tf.errors.FailedPreconditionError(
            None,
            None,
            f"{prefix} builds on checkpoint id {own[1]}, but the one before it, {before}, has id "
            f"{built_on[0]}: a checkpoint between them is missing, or was replaced",
        )


def _sharded_variables() -> list[Any]:
    """Returns the sharded tables, and their slots, of which increments have the changed rows."""
    _, others = take_tables(variables._all_saveable_objects())
    return [variable for variable in others if saved_shard_of(variable) is not None]


def _saver_of_changes() -> tf_saver.Saver:
    saved = variables._all_saveable_objects()
    builder = checkpoint.SaverBuilder(_tf1.train.SaverDef.V2, changes=True, track=True)
    saver = tf_saver.Saver(saved, max_to_keep=0, builder=builder, name="save_changes")
    barrier = None
    if context.world_size > 1:
        with tf.name_scope("save_changes"):
            barrier = ordered.barrier(name="save_changes_recorded")
    saver.save = checkpoint.save_on_all(saver.save, saver, barrier)
    saver.restore = checkpoint.restore_by_name(saver.restore)
    return saver


class IncrementalCheckpointHook(tf.compat.v1.train.CheckpointSaverHook):
    """A hook that saves increments while a session trains, and restores its checkpoint's increments when it begins.

    The session saves the full checkpoints; if there is none to build on, this hook saves one. The hook must come before
    the hook that saves full checkpoints.

    Args:
      checkpoint_dir: the session's folder of checkpoints.
      scaffold: the session's scaffold; its saver saves full checkpoints.
      save_secs: time between increments, in seconds.
      save_steps: number of steps between increments. Exactly one of `save_secs` and `save_steps` is given.
    """

    def __init__(
        self, checkpoint_dir: str, scaffold: Any, save_secs: float | None = None, save_steps: int | None = None
    ) -> None:
        super().__init__(checkpoint_dir, save_secs=save_secs, save_steps=save_steps, scaffold=scaffold)
        self._directory = checkpoint_dir
        self._saver_of_increments: IncrementalSaver
        self.saved_path = ""  # the prefix of the last checkpoint that it has saved, for its listeners

    def begin(self) -> None:
        """Builds the saver of increments."""
        super().begin()
        self._saver_of_increments = IncrementalSaver(self._get_saver)

    def newest(self, save_path: str) -> str:
        """Returns, on worker 0, the last increment on a full checkpoint, or the full checkpoint if there is none."""
        background.finish()
        names = increments_on(save_path)
        return Chain(os.path.basename(save_path), names).prefixes(self._directory)[-1] if names else save_path

    # The listeners of the job's own hooks ask for the end of the save.
    saves_beside_training = True

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Restores the increments on the checkpoint that the session has restored."""
        del coord
        path = latest.agreed_checkpoint(self._directory, "incremental_latest")
        if path is not None:
            self._saver_of_increments.restore_increments(session, path)
        self._saver_of_increments.track(session)
        self._timer.update_last_triggered_step(session.run(self._global_step_tensor))

    def _save(self, session: Any, step: int) -> bool:
        self.saved_path = self._saver_of_increments.save(session, self._save_path, step)
        for listener in self._listeners:
            listener.after_save(session, step)
        return False
