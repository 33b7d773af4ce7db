"""The position in the data as a part of checkpoints: option `save_data_position`.

Each worker's position is saved under a name of its own. The session restores it, not a saver. This happens after all
initialization, because an initializable iterator would otherwise return to its beginning. It happens only if the
checkpoint has positions for the same number of workers, because positions in other shares of the data mean nothing. If
a session that trains on data does not use the positions of a checkpoint, or if there are none, worker 0 warns that the
data starts again from the beginning.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.training.saving import saveable_object

from lockstep._src.collectives import agreement
from lockstep._src.engine import file_errors
from lockstep._src.engine.context import context
from lockstep._src.saving import latest

_tf1 = tf.compat.v1
# The key is not a string, so that exported graphs omit the collection.
_POSITIONS = ("lockstep", "positions")
_ITERATORS = ("Iterator", "IteratorV2", "OneShotIterator")
_SWITCH_OFF = "save_data_position=False, or LOCKSTEP_SAVE_DATA_POSITION=0 in the environment"
# The name of a position in a checkpoint; it gives the iterator's name and the number of workers.
_NAME = re.compile(r"(.+?)(?::[0-9]+)?(?:_STATE)?/worker_[0-9]+_of_([0-9]+)")
_SWITCH_ON = (
    "LOCKSTEP_SAVE_DATA_POSITION=1 in the environment, as the launcher's --restarts sets it, or "
    "hb.scope(save_data_position=True)"
)
# The errors that a dataset raises for files and positions. All other errors mean that the checkpoint is damaged.
_ERRORS_OF_DATA = (
    tf.errors.FailedPreconditionError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
)


class PositionSaveable(saveable_object.SaveableObject):
    """The position of one worker's iterator. It is saved under a name that includes the worker and the job's size.

    A job of another size does not find this name, because it could not use positions in other shares.

    Args:
      position: TensorFlow's saveable for the iterator (`tf.data.experimental.make_saveable_from_iterator`).
      restored_by_saver: False if a session's `PositionHook` restores it.
    """

    def __init__(self, position: Any, restored_by_saver: bool = True) -> None:
        self._position = position
        self.restored_by_saver = restored_by_saver
        end = f"/worker_{context.rank}_of_{context.world_size}"
        specs = [
            saveable_object.SaveSpec(spec.tensor, spec.slice_spec, spec.name + end, spec.dtype, spec.device)
            for spec in position.specs
        ]
        super().__init__(position.op, specs, position.name + end)

    def restore(self, restored_tensors: list[tf.Tensor], restored_shapes: list[Any] | None) -> tf.Operation:
        """Moves the iterator to the restored position."""
        return self._position.restore(restored_tensors, restored_shapes)


def note(iterator: Any) -> None:
    """Adds the position of an iterator of the current graph to the checkpoints of all savers that are made later."""
    saveable = PositionSaveable(_position_of(iterator), restored_by_saver=False)
    _tf1.add_to_collection(_tf1.GraphKeys.SAVEABLE_OBJECTS, saveable)
    _tf1.add_to_collection(_POSITIONS, saveable)


def resumes(graph: tf.Graph) -> bool:
    """Returns whether a session that restores a checkpoint of this graph resumes in its data as well, if any."""
    return bool(graph.get_collection(_POSITIONS)) or not _takes_data(graph)


def is_position(saveable: Any) -> bool:
    """Returns whether a saveable is an iterator's position."""
    source = getattr(saveable.op, "op", None) if isinstance(saveable, saveable_object.SaveableObject) else None
    return source is not None and source.type in _ITERATORS


@contextlib.contextmanager
def saving() -> Iterator[None]:
    """Adds advice to the error if a checkpoint cannot be saved because of an iterator's position."""
    try:
        yield
    except tf.errors.OpError as error:
        if error.op is None or error.op.type != "SerializeIterator":
            raise
        raise type(error)(
            error.node_def,
            error.op,
            f"the position in the data cannot be saved. Set {_SWITCH_OFF} (the launcher's "
            f"--restarts sets 1); the data then starts from its beginning in each session. Or use only datasets whose "
            f"position can be saved, such as files, without Python functions and random numbers. "
            f"{file_errors.cause_of(error)}",
        ) from error


def forget() -> None:
    """Removes all positions from the current graph's saveables, so that later savers do not save them."""
    saveables = _tf1.get_collection_ref(_tf1.GraphKeys.SAVEABLE_OBJECTS)
    saveables[:] = [saveable for saveable in saveables if not is_position(saveable)]


def _position_of(iterator: Any) -> Any:
    """Returns TensorFlow's saveable for an iterator of a graph.

    The function is for graphs only, and says so in a deprecation warning to all callers. A user of this library cannot
    do anything about it, so the function is called without the warning.
    """
    return inspect.unwrap(tf.data.experimental.make_saveable_from_iterator)(iterator)


def _adopt() -> None:
    """Makes the session, not the saver, restore positions that the program itself added to `SAVEABLE_OBJECTS`."""
    saveables = _tf1.get_collection_ref(_tf1.GraphKeys.SAVEABLE_OBJECTS)
    for i, saveable in enumerate(saveables):
        if is_position(saveable) and not isinstance(saveable, PositionSaveable):
            saveables[i] = PositionSaveable(saveable, restored_by_saver=False)
            _tf1.add_to_collection(_POSITIONS, saveables[i])


class PositionHook(tf.compat.v1.train.SessionRunHook):
    """Moves a session's iterators to the position at which its checkpoint was saved.

    Args:
      checkpoint_dir: the folder in which the session finds its checkpoint.
      newest: returns, on worker 0 and for a full checkpoint, the last increment that the session restores on top of it.
        None if the session restores no increments.
    """

    stops_alike = True

    def __init__(self, checkpoint_dir: str, newest: Callable[[str], str] | None = None) -> None:
        self._directory = checkpoint_dir
        self._newest = newest

    def begin(self) -> None:
        """Builds the operations that restore, before the graph is finalized."""
        _adopt()
        self._names: list[str] = []
        restores = []
        positions = _tf1.get_collection(_POSITIONS)
        if not positions:
            return
        self._checkpoint = _tf1.placeholder_with_default("", (), name="positions_checkpoint")
        for position in positions:
            names, types = zip(*((spec.name, spec.dtype) for spec in position.specs), strict=True)
            restored = tf.raw_ops.RestoreV2(
                prefix=self._checkpoint, tensor_names=names, shape_and_slices=[""] * len(names), dtypes=types
            )
            restores.append(position.restore(restored, None))
            self._names += names
        self._restore = tf.group(*restores)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Restores the positions, after the session has restored all else from the same checkpoint."""
        del coord
        if not self._names:
            path = latest.latest_checkpoint(self._directory) if context.is_chief else None
            if path is not None and _takes_data(session.graph):
                _warn_of_beginning(path if self._newest is None else self._newest(path))
            return
        path = latest.agreed_checkpoint(self._directory, "positions_latest")
        if path is not None and self._newest is not None:
            path = agreement.from_chief(self._newest(path) if context.rank == 0 else None, "positions_checkpoint")
        if path is None:
            return
        there = dict(tf.train.list_variables(path))
        if not agreement.any_worker(any(name not in there for name in self._names), "positions_missing"):
            self._restore_positions(session, path)
        elif context.is_chief:
            _tf1.logging.warning(
                "%s has no position of this graph's data for %d workers (it has %s): data restarts at its first "
                "batch. The checkpoints that this job saves will have the positions",
                path,
                context.world_size,
                _describe(_positions_in(path)) or "none at all",
            )

    def _restore_positions(self, session: Any, path: str) -> None:
        """Restores the positions. If one does not fit the data, the error names the worker and the remedies."""
        try:
            session.run(self._restore, {self._checkpoint: path})
        except tf.errors.OpError as error:
            # Programs must not take this error for the end of the data, or for a host that will return.
            kind = type(error) if isinstance(error, _ERRORS_OF_DATA) else tf.errors.DataLossError
            raise kind(
                error.node_def,
                error.op,
                f"{path}: worker {context.rank} of {context.world_size} cannot continue its data from the position in "
                f"this checkpoint. Give it the same data again. Or continue from the checkpoint, but with the data "
                f"from its beginning: set {_SWITCH_OFF}\n{error.message}",
            ) from error


def _takes_data(graph: tf.Graph) -> bool:
    """Returns whether a graph trains on data whose position could be restored."""
    return context.options.mode == "train" and any(op.type in _ITERATORS for op in graph.get_operations())


def _positions_in(path: str) -> dict[int, list[str]]:
    """Returns the iterators whose positions a checkpoint has, by the number of workers."""
    found: dict[int, list[str]] = {}
    types = tf.train.load_checkpoint(path).get_variable_to_dtype_map()
    for name in sorted(name for name, dtype in types.items() if dtype == tf.variant):
        match = _NAME.fullmatch(name)
        if match is not None and match[1] not in found.setdefault(int(match[2]), []):
            found[int(match[2])].append(match[1])
    return found


def _describe(positions: dict[int, list[str]]) -> str:
    """Returns the text for positions in a message; it is empty if there are none."""
    return "; ".join(
        f"the position of each of {workers} workers in {', '.join(map(repr, names))}"
        for workers, names in sorted(positions.items())
    )


def _warn_of_beginning(path: str) -> None:
    """Warns that the data of a session that resumes starts again, and says how its position is kept as well."""
    positions = _describe(_positions_in(path))
    if positions:
        _tf1.logging.warning(
            "%s has %s, but this job does not use it: data restarts at its first batch; weights and the "
            "step are restored. To restore the position as well, start as many workers with %s",
            path,
            positions,
            _SWITCH_ON,
        )
    else:
        _tf1.logging.warning(
            "%s has no position in the data: data begins with its first batch, while weights and the step are "
            "restored. Checkpoints have the position with %s",
            path,
            _SWITCH_ON,
        )
