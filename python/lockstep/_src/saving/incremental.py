"""Incremental checkpoints: between two full ones, what of the dynamic tables has changed.

An increment is a TensorFlow checkpoint: of dynamic tables the keys that were seen or changed since the checkpoint
before it, and those that went (tf/checkpoint/table_layout.h); all other variables whole. It has a folder of its own:

    <directory>/model.ckpt-1000.*                                  a full checkpoint
    <directory>/.incremental_checkpoint/model.ckpt-1000-to-1100.*  what changed until step 1100
    <directory>/.incremental_checkpoint/model.ckpt-1000-to-1200.*  and from there until step 1200
    <directory>/.incremental_checkpoint/chain.json                 which of them, in order, build on which full one

An increment never takes the name of one that `chain.json` has: a second one of the same step is called
`model.ckpt-1000-to-1200-2`, by its place in the chain.

Every checkpoint has a number of its own, and an increment that of the one it builds on; tables know the number of what
they hold. So a link that is missing or was replaced is an error that names it, whatever the files are called.

An increment is complete or absent, as any checkpoint, and counts when `chain.json` has it, which is written behind it,
and synced. The next full checkpoint, whoever saves it, ends the chain. When one begins that builds on the new one, all
other increments of the folder are removed: those of the last chain, and what a writer that died left there unlisted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import variables
from tensorflow.python.training import saver as tf_saver

from lockstep._src.collectives import agreement, ordered
from lockstep._src.engine import failures
from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep._src.saving import checkpoint, latest
from lockstep._src.saving.chain import FOLDER, Chain
from lockstep._src.saving.table_saveables import take_tables
from lockstep._src.tables import dynamic

_tf1 = tf.compat.v1
_gfile = tf.io.gfile


class IncrementalSaver:
    """Saves full checkpoints and increments of the present graph, and restores them. All workers use it together.

    Args:
      saver: for full checkpoints; a function that gives it; None for one of its own.
      full_every: of so many checkpoints that it saves one is full: the chain never gets longer. None: the first, and
        where the changes since the last one are not known.

    Raises:
      ValueError: the graph has no dynamic tables.
    """

    def __init__(self, saver: Any = None, full_every: int | None = None) -> None:
        if full_every is not None and full_every < 1:
            raise ValueError(f"IncrementalSaver: full_every is {full_every}, wanted 1 or more")
        tables = dynamic.dynamic_tables()
        if not tables:
            raise ValueError("IncrementalSaver: the graph has no dynamic table, of which increments would be")
        self._full: Callable[[], Any] = saver if callable(saver) else lambda: saver
        if saver is None:
            own = checkpoint.Saver()
            self._full = lambda: own
        self._every = full_every
        self._links = ops.lockstep_track_tables([table.handle for table in tables])
        self._changes = _saver_of_changes()
        self._chain: Chain | None = None  # what self._link builds on; of worker 0
        self._link: int | None = None

    def track(self, session: Any) -> None:
        """Has the tables record what changes from now on, in a session that has just been made."""
        session.run(self._links)

    def save(self, session: Any, save_path: str, global_step: int) -> str:
        """Saves an increment, or a full checkpoint where there has to be one.

        Args:
          session: the session.
          save_path: of full checkpoints, to which the step is added; increments go to a folder beside them.
          global_step: the step.

        Returns:
          Prefix of what was saved.
        """
        with failures.of_the_job(f"incremental checkpoint of {save_path} cannot be saved"):
            return self._save(session, save_path, global_step)

    def _save(self, session: Any, save_path: str, global_step: int) -> str:
        links = agreement.of_all(session.run(self._links).tolist(), "incremental_links")
        # 0: the changes of a table are not known.
        link = links[0][0] if {link for of_worker in links for link in of_worker} == {links[0][0]} else 0
        directory = os.path.dirname(save_path)
        name = None
        if context.rank == 0 and self._continues(link, directory):
            name = self._chain.next_name(int(global_step))
        name = agreement.from_chief(name, "incremental_name")
        if name is None:
            path = self._full().save(session, save_path, global_step=global_step)
            self._begin_chain(directory, os.path.basename(path))
        else:
            path = os.path.join(directory, FOLDER, name)
            self._changes.save(session, path, write_meta_graph=False, write_state=False)
            if context.rank == 0:
                self._chain.increments.append(name)
                self._chain.write(directory)
        self._link = int(session.run(self._links)[0])
        return path

    def restore(self, session: Any, save_path: str) -> None:
        """Restores a full checkpoint, and then what builds on it.

        Raises:
          tf.errors.DataLossError: an increment is missing, or damaged.
          tf.errors.FailedPreconditionError: an increment builds on another checkpoint than the one before it.
        """
        self._full().restore(session, save_path)
        self.restore_increments(session, save_path)

    def restore_increments(self, session: Any, save_path: str) -> list[str]:
        """Restores what builds on a full checkpoint that the session holds; the increments' prefixes."""
        directory = os.path.dirname(save_path)
        found = agreement.from_chief(_increments_on(save_path) if context.rank == 0 else None, "incremental_chain")
        chain = Chain(os.path.basename(save_path), found)
        for number, prefix in enumerate(chain.prefixes(directory), 1):
            if not _gfile.exists(f"{prefix}.index"):
                raise tf.errors.DataLossError(
                    None, None, f"{prefix}.index is missing: number {number} of {len(found)} that build on {save_path}"
                )
            self._changes.restore(session, prefix)
        return chain.prefixes(directory)

    def _continues(self, link: int, directory: str) -> bool:
        """Of worker 0: whether the chain goes on; otherwise the next checkpoint is to be a full one."""
        if not link:
            return False
        if link != self._link or self._chain is None:
            # Somebody else saved the last one: the graph's saver, as a session has it?
            others = getattr(self._full(), "last_checkpoints", None)
            if not others or os.path.dirname(others[-1]) != directory or _link_of(others[-1]) != link:
                return False
            self._begin_chain(directory, os.path.basename(others[-1]))
        return self._every is None or len(self._chain.increments) + 1 < self._every

    def _begin_chain(self, directory: str, base: str) -> None:
        """Has increments build on another full checkpoint, and removes all others."""
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


def _increments_on(save_path: str) -> list[str]:
    """Names of what builds on a full checkpoint."""
    chain = Chain.of(os.path.dirname(save_path))
    return chain.increments if chain is not None and chain.base == os.path.basename(save_path) else []


def _link_of(path: str) -> int | None:
    """The number of a full checkpoint; None where it has none, or is not there."""
    if not _gfile.exists(f"{path}.index"):
        return None
    reader = tf.train.load_checkpoint(path)
    numbered = [name for name in reader.get_variable_to_shape_map() if name.endswith("-link")]
    links = {int(reader.get_tensor(name)[0]) for name in numbered}
    return links.pop() if len(links) == 1 else None


def _saver_of_changes() -> tf_saver.Saver:
    saved = variables._all_saveable_objects()
    builder = checkpoint.SaverBuilder(_tf1.train.SaverDef.V2, changes=True, track=True)
    assert take_tables(saved)[0], "tables are global variables"
    saver = tf_saver.Saver(saved, max_to_keep=0, builder=builder, name="save_changes")
    barrier = None
    if context.world_size > 1:
        with tf.name_scope("save_changes"):
            barrier = ordered.barrier(name="save_changes_recorded")
    saver.save = checkpoint.save_on_all(saver.save, saver, barrier)
    saver.restore = checkpoint.restore_by_name(saver.restore)
    return saver


class IncrementalCheckpointHook(_tf1.train.CheckpointSaverHook):
    """Saves increments while a session trains; when the session begins, restores those of its checkpoint.

    Full checkpoints are the session's; where there is none to build on, one is saved. To come before the hook that
    saves them.

    Args:
      checkpoint_dir: of the session.
      scaffold: of the session; its saver saves full checkpoints.
      save_secs: how often, in seconds.
      save_steps: how often, in steps; one of both is given.
    """

    def __init__(
        self, checkpoint_dir: str, scaffold: Any, save_secs: float | None = None, save_steps: int | None = None
    ) -> None:
        super().__init__(checkpoint_dir, save_secs=save_secs, save_steps=save_steps, scaffold=scaffold)
        self._directory = checkpoint_dir
        self._saver_of_increments: IncrementalSaver | None = None

    def begin(self) -> None:
        """Builds what saves increments."""
        super().begin()
        if dynamic.dynamic_tables():
            self._saver_of_increments = IncrementalSaver(self._get_saver)
        elif context.rank == 0:
            _tf1.logging.warning("no dynamic tables: no incremental checkpoints, but full ones alone")

    def newest(self, save_path: str) -> str:
        """The last checkpoint that a session restores which begins with a full one; worker 0 asks."""
        names = [] if self._saver_of_increments is None else _increments_on(save_path)
        return Chain(os.path.basename(save_path), names).prefixes(self._directory)[-1] if names else save_path

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Restores what builds on the checkpoint that the session has restored."""
        del coord
        if self._saver_of_increments is not None:
            path = latest.of_the_job(self._directory, "incremental_latest")
            if path is not None:
                self._saver_of_increments.restore_increments(session, path)
            self._saver_of_increments.track(session)
        self._timer.update_last_triggered_step(session.run(self._global_step_tensor))

    def _save(self, session: Any, step: int) -> bool:
        if self._saver_of_increments is not None:
            self._saver_of_increments.save(session, self._save_path, step)
        return False
