"""The position in the data, in the checkpoints of a model: option `save_data_position`.

Each worker's position is saved under a name of its own. It is restored by a session, and not by a saver: after all is
initialized, so that an initializable iterator doesn't go back to its beginning; and only where the checkpoint has the
positions of as many workers, for those in other shares of the data mean nothing. Where a checkpoint has positions that
a session does not go on from, or has none, worker 0 warns that data begins anew.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.training.saving import saveable_object

from lockstep._src.collectives import agreement
from lockstep._src.engine import failures
from lockstep._src.engine.context import context
from lockstep._src.saving import latest

_tf1 = tf.compat.v1
# No string: exported graphs leave it out.
_POSITIONS = ("lockstep", "positions")
_ITERATORS = ("Iterator", "IteratorV2", "OneShotIterator")
_WITHOUT = "save_data_position=False, or LOCKSTEP_SAVE_DATA_POSITION=0 in the environment"
# The name that a position has in a checkpoint: of the iterator, and of how many workers.
_NAME = re.compile(r"(.+?)(?::[0-9]+)?(?:_STATE)?/worker_[0-9]+_of_([0-9]+)")
_SWITCH_ON = (
    "LOCKSTEP_SAVE_DATA_POSITION=1 in the environment, as the launcher's --restarts sets it, or "
    "hb.scope(save_data_position=True)"
)
# What a dataset says of files and positions; all others are damage.
_ERRORS_OF_DATA = (
    tf.errors.FailedPreconditionError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
)


class PositionSaveable(saveable_object.SaveableObject):
    """The position of one worker's iterator, which is another on each, under a name of the worker's.

    A job of another size doesn't find it: positions in other shares mean nothing to it.

    Args:
      position: what TensorFlow makes of the iterator (`tf.data.experimental.make_saveable_from_iterator`).
      restored_by_saver: False where a session's `PositionHook` restores it.
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
        """Goes to the position."""
        return self._position.restore(restored_tensors, restored_shapes)


def note(iterator: Any) -> None:
    """Puts the position of an iterator of the present graph into all checkpoints that are saved of it from now on."""
    saveable = PositionSaveable(tf.data.experimental.make_saveable_from_iterator(iterator), restored_by_saver=False)
    _tf1.add_to_collection(_tf1.GraphKeys.SAVEABLE_OBJECTS, saveable)
    _tf1.add_to_collection(_POSITIONS, saveable)


def is_position(saveable: Any) -> bool:
    """Whether something that is saved is an iterator's position."""
    source = getattr(saveable.op, "op", None) if isinstance(saveable, saveable_object.SaveableObject) else None
    return source is not None and source.type in _ITERATORS


@contextlib.contextmanager
def saving() -> Iterator[None]:
    """Says of a position that cannot be saved, while a checkpoint is, how to do without."""
    try:
        yield
    except tf.errors.OpError as error:
        if error.op is None or error.op.type != "SerializeIterator":
            raise
        raise type(error)(
            error.node_def,
            error.op,
            f"the position in the data cannot be part of a checkpoint: {_WITHOUT} (the launcher's --restarts says 1), "
            f"lets data begin anew with each session. Or make the data of operations whose position is known, such as "
            f"files, without Python's functions and random numbers. {failures.cause_of(error)}",
        ) from error


def forget() -> None:
    """Leaves positions out of the savers that are made for the present graph from now on."""
    saveables = _tf1.get_collection_ref(_tf1.GraphKeys.SAVEABLE_OBJECTS)
    saveables[:] = [saveable for saveable in saveables if not is_position(saveable)]


def _adopt() -> None:
    """Has the session restore the positions which the program put among what is saved as TensorFlow's documents say."""
    saveables = _tf1.get_collection_ref(_tf1.GraphKeys.SAVEABLE_OBJECTS)
    for i, saveable in enumerate(saveables):
        if is_position(saveable) and not isinstance(saveable, PositionSaveable):
            saveables[i] = PositionSaveable(saveable, restored_by_saver=False)
            _tf1.add_to_collection(_POSITIONS, saveables[i])


class PositionHook(_tf1.train.SessionRunHook):
    """Has a session's iterators go on where they were when its checkpoint was saved.

    Args:
      checkpoint_dir: where the session finds its checkpoint.
      newest: gives worker 0, for a full checkpoint, the last one that the session restores over it. None: it restores
        no others.
    """

    stops_alike = True

    def __init__(self, checkpoint_dir: str, newest: Callable[[str], str] | None = None) -> None:
        self._directory = checkpoint_dir
        self._newest = newest

    def begin(self) -> None:
        """Builds what restores, while the graph may grow."""
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
        """Restores: the session has restored the rest from the same checkpoint, and initialized everything."""
        del coord
        if not self._names:
            path = latest.latest_checkpoint(self._directory) if context.is_chief else None
            if path is not None and _takes_data(session.graph):
                _warn_of_dropped(path if self._newest is None else self._newest(path))
            return
        path = latest.of_the_job(self._directory, "positions_latest")
        if path is not None and self._newest is not None:
            path = agreement.from_chief(self._newest(path) if context.rank == 0 else None, "positions_checkpoint")
        if path is None:
            return
        there = dict(tf.train.list_variables(path))
        if not agreement.any_worker(any(name not in there for name in self._names), "positions_missing"):
            self._go_on(session, path)
        elif context.is_chief:
            _tf1.logging.warning(
                "%s has no position of this graph's data for %d workers (it has %s): data begins anew, with its first "
                "batch. The checkpoints that this job saves have them",
                path,
                context.world_size,
                _describe(_positions_in(path)) or "none at all",
            )

    def _go_on(self, session: Any, path: str) -> None:
        """Restores; says of a position that is none in these data whose it is, and what can be done."""
        try:
            session.run(self._restore, {self._checkpoint: path})
        except tf.errors.OpError as error:
            # Nobody shall take it for the end of the data, nor for a host that went and comes back.
            kind = type(error) if isinstance(error, _ERRORS_OF_DATA) else tf.errors.DataLossError
            raise kind(
                error.node_def,
                error.op,
                f"{path}: worker {context.rank} of {context.world_size} cannot go on in its data where it was when "
                f"this was saved. Give it the same data again; or train on from the checkpoint with data from their "
                f"beginning: {_WITHOUT}\n{error.message}",
            ) from error


def _takes_data(graph: tf.Graph) -> bool:
    """Returns whether a graph trains on data that could go on from a position."""
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
    """Returns the text for positions in a message; empty where there are none."""
    return "; ".join(
        f"the position of each of {workers} workers in {', '.join(map(repr, names))}"
        for workers, names in sorted(positions.items())
    )


def _warn_of_dropped(path: str) -> None:
    """Warns that data begins anew although a checkpoint has its positions, and says how to use them."""
    positions = _describe(_positions_in(path))
    if positions:
        _tf1.logging.warning(
            "%s has %s, and this job does not go on from there: data begins anew, with its first batch, while weights "
            "and the step go on. To go on in the data as well, start as many workers with %s",
            path,
            positions,
            _SWITCH_ON,
        )
