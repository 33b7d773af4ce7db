"""Reads checkpoints and increments in a plain process, without the graph of the training program.

Large tensors are read in pieces of some megabytes, if they were written in slices, as sharded and dynamic tables are.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from lockstep._src.engine import file_errors
from lockstep._src.saving import bundle, checkpoint_ids, delta_files

_tf1 = tf.compat.v1
_PIECE_BYTES = 8 << 20


class Increment:
    """An increment, or the full checkpoint on which a chain begins.

    Args:
      prefix: its prefix.

    Raises:
      tf.errors.DataLossError: it is missing, damaged, or has no id. The message names it. All methods raise it too.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        with self._naming():
            self._reader = tf.train.load_checkpoint(prefix)
            self.shapes = self._reader.get_variable_to_shape_map()
            self.dtypes = self._reader.get_variable_to_dtype_map()
            ids = checkpoint_ids.read_ids(self._reader)
        if ids is None:
            raise tf.errors.DataLossError(None, None, f"{prefix} has no checkpoint id ({checkpoint_ids.TENSOR})")
        self.version, self.previous = ids
        self._last_whole: tuple[str, np.ndarray] | None = None  # the tensor that `rows` read last, if it has no slices

    def tensor(self, name: str) -> np.ndarray:
        """Returns a tensor as an array."""
        with self._naming():
            if name not in self.shapes:
                raise ValueError(f"it lacks {name}")
            return np.asarray(self._reader.get_tensor(name))

    def rows(self, name: str, first: int, stop: int) -> np.ndarray:
        """Returns the rows `first` to `stop - 1` of a tensor with one dimension or more."""
        with self._naming():
            shape = self.shapes[name]
            if (first, stop) == (0, shape[0]):
                return np.asarray(self._reader.get_tensor(name))
            if name not in self._sliced:  # TensorFlow reads all of it for each piece
                if self._last_whole is None or self._last_whole[0] != name:
                    self._last_whole = name, np.asarray(self._reader.get_tensor(name))
                return self._last_whole[1][first:stop]
            places = ":".join([f"{first},{stop - first}", *["-"] * (len(shape) - 1)])
            with tf.Graph().as_default(), host_session() as session, tf.device("CPU:0"):
                (rows,) = tf.raw_ops.RestoreV2(
                    prefix=self.prefix,
                    tensor_names=[name],
                    shape_and_slices=[f"{' '.join(map(str, shape))} {places}"],
                    dtypes=[self.dtypes[name]],
                )
                return session.run(rows)

    @functools.cached_property
    def _sliced(self) -> set[str]:
        """The names of the tensors that were written in slices."""
        return {name for name, entry in bundle.read_index(self.prefix)[1] if entry.slices}

    def pieces(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the rows of a tensor in pieces of some megabytes, each with the number of its first row."""
        for first, stop in pieces_of(self.shapes[name], self.dtypes[name]):
            yield first, self.rows(name, first, stop)

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        """Makes an error of TensorFlow's readers, whose classes vary, one that names this checkpoint."""
        try:
            yield
        except (tf.errors.OpError, ValueError, KeyError, IndexError) as error:
            cause = file_errors.cause_of(error)
            raise tf.errors.DataLossError(None, None, f"{self.prefix} is missing or damaged: {cause}") from error


def pieces_of(shape: Sequence[int], dtype: tf.DType) -> Iterator[tuple[int, int]]:
    """Yields the first row, and the one after the last, of each piece of some megabytes of a tensor."""
    # For strings, which have no fixed size, 64 bytes are assumed.
    size = 64 if dtype == tf.string else dtype.size
    rows = max(1, _PIECE_BYTES // max(1, size * int(np.prod(shape[1:], dtype=np.int64))))
    for first in range(0, shape[0], rows):
        yield first, min(first + rows, shape[0])


def read_places(
    checkpoints: Sequence[Increment], name: str, source: np.ndarray, place: np.ndarray, out: np.ndarray
) -> None:
    """Reads rows of the tensors `name` of some checkpoints, in pieces of some megabytes.

    Args:
      checkpoints: the checkpoints.
      name: the name of the tensor, which each of them has.
      source: [C], for each wanted row the number of its checkpoint.
      place: [C], the number of the row in the tensor.
      out: [C, ...], gets the rows.
    """
    for i, checkpoint in enumerate(checkpoints):
        wanted = np.flatnonzero(source == i)
        for first, rows in checkpoint.pieces(name) if len(wanted) else ():
            here = wanted[(place[wanted] >= first) & (place[wanted] < first + len(rows))]
            out[here] = rows[place[here] - first]


def host_session() -> tf.compat.v1.Session:
    """Returns a session of the default graph that uses no GPU."""
    return _tf1.Session(config=_tf1.ConfigProto(device_count={"GPU": 0}))


class Rows:
    """The rows of a variable at the last of some consecutive checkpoints.

    Args:
      name: the variable's name.
      checkpoints: the checkpoints. If the first of them does not have the variable whole, only changed rows are known.

    Attributes:
      ids: [C] int64, ascending: the rows that changed after the last checkpoint that has the variable whole.
      values: [C, ...]: these rows.
      whole: the last checkpoint that has the variable whole, or None.
    """

    def __init__(self, name: str, checkpoints: Sequence[Increment]) -> None:
        self._name = name
        at = max((i for i, one in enumerate(checkpoints) if name in one.shapes), default=-1)
        self.whole = checkpoints[at] if at >= 0 else None
        changed = checkpoints[at + 1 :]
        ids = [one.tensor(delta_files.changed_ids(name)) for one in changed]
        # The first of the reversed numbers is the last one.
        self.ids, last = np.unique(_joined(ids)[::-1], return_index=True)
        source = _joined([np.full(len(each), i) for i, each in enumerate(ids)])[::-1][last]
        place = _joined([np.arange(len(each)) for each in ids])[::-1][last]
        values = delta_files.changed_values(name)
        row, dtype = (changed[0].shapes[values][1:], changed[0].dtypes[values]) if changed else ([], tf.float32)
        self.values = np.empty([len(self.ids), *row], dtype.as_numpy_dtype)
        read_places(changed, values, source, place, self.values)

    def read(self, first: int, stop: int) -> np.ndarray:
        """Returns the rows `first` to `stop - 1`; `whole` must be there."""
        assert self.whole is not None
        rows = self.whole.rows(self._name, first, stop)
        begin, end = np.searchsorted(self.ids, [first, stop])
        if begin < end:
            rows = rows.copy()
            rows[self.ids[begin:end] - first] = self.values[begin:end]
        return rows


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros([0], np.int64)
