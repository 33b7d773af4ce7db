"""Incremental delivery: what changed since an export, as files that a running server applies (docs/deltas.md).

A delta is made of the increments that the training job saves (incremental.py), and needs no part of the job. It has

| tensor | type, shape | content |
| --- | --- | --- |
| `lockstep-link` | int64 [2] | the version after the delta, and the version on which it builds |
| `<v>` | of the variable, [] | each scalar variable |
| `<v>-changed-ids` | int64 [C] | the changed rows of each other variable, along its first dimension, ascending |
| `<v>-changed-values` | of the variable, [C, ...] | these rows |
| `<e>-changed-keys` | int64 or string [C] | of each dynamic table, keys that were seen, changed or inserted |
| `<e>-changed-values` | float32 [C, D] | their rows |
| `<e>-removed-keys` | int64 or string [G] | keys that are gone |

Several increments become one delta: the last value of each row counts. A key that was removed and not inserted again
is in `removed-keys`, and in no other case.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from lockstep._src.engine import background, file_errors, whole_files
from lockstep._src.engine.context import context
from lockstep._src.saving import chain, checkpoint_ids, delta_files, string_numbers
from lockstep._src.saving.delta_files import Record
from lockstep._src.saving.increments import Increment, Rows, host_session, pieces_of, read_places

_gfile = tf.io.gfile
_tf1 = tf.compat.v1


def export_delta(
    since: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str] | None = None,
    directory: str | os.PathLike[str] | None = None,
) -> str | None:
    """Writes what changed since an export, or since a delta, as one delta for running servers.

    It reads the increments that a training job saves (`save_incremental_checkpoint_secs`), and may run in any process,
    while the job trains. In a process of the job it waits for the increment that is being saved. The page of deltas
    shows a server program.

    Args:
      since: the folder of an export with `updatable=True`, or of a delta on one.
      checkpoint: the prefix of the increment with which the delta ends. None: the newest one of the checkpoint folder
        from which the export was made.
      directory: the folder in which the delta's folder is made. None: the folder of `since` if it is a delta, or else
        `deltas` beside the export.

    Returns:
      The new folder, `<directory>/<export>-<number>`; None if no increment is newer than `since`, and on other workers
      than the chief.

    Raises:
      ValueError: `since` is neither kind of folder, its record is damaged, or `checkpoint` is not an increment of the
        present chain, or is older than `since`.
      FileExistsError: the folder has a delta that builds on `since` already.
      tf.errors.FailedPreconditionError: no increment leads on from `since`, and there is a newer full checkpoint, which
        begins a new chain. A full export is needed.
      tf.errors.DataLossError: an increment is missing or damaged; the message names it.
      OSError, tf.errors.OpError: the increment that this process was saving has failed.
    """
    if context.rank != 0:
        return None
    background.finish()
    since = os.fspath(since)
    record = delta_files.read_record(since)
    base = os.path.dirname(os.path.normpath(since))
    if directory is None:
        directory = base if record.sequence else os.path.join(base, delta_files.FOLDER)
    target = os.path.join(os.fspath(directory), delta_files.name_of(record.export, record.sequence + 1))
    history = _History(record, since, None if checkpoint is None else os.fspath(checkpoint))
    try:
        newer = history.newer()
        if not newer:
            return None
        if _gfile.exists(target):
            raise FileExistsError(f"export_delta: {target} already builds on {since}; pass the last delta as `since`")
        tensors = _merged(record, newer, history)
    except tf.errors.DataLossError as error:
        history.check_present(error)
        raise
    made = Record(
        export=record.export,
        sequence=record.sequence + 1,
        version=newer[-1].version,
        previous=record.version,
        checkpoint=newer[-1].prefix,
        variables=record.variables,
        tables=record.tables,
    )
    _write(target, made, tensors)
    return target


class _History:
    """The checkpoints of a folder, from the full one on which the present chain begins.

    Args:
      record: the export or delta since which changes are wanted.
      since: its folder, for messages.
      end: the prefix of the last increment that counts; None: the newest.
    """

    def __init__(self, record: Record, since: str, end: str | None) -> None:
        self._record, self._since = record, since
        self._directory = os.path.dirname(end or record.checkpoint)
        if os.path.basename(self._directory) == chain.FOLDER:
            self._directory = os.path.dirname(self._directory)
        found = chain.Chain.read(self._directory)
        full = os.path.basename(record.checkpoint).rsplit("-to-", 1)[0]
        chain.check_not_lost(self._directory, full, found)
        self._chain = found or chain.Chain("", [])
        names = self._chain.increments
        if end is not None and os.path.basename(end) != self._chain.base:
            if os.path.basename(end) not in names:
                raise ValueError(
                    f"export_delta: checkpoint is {end!r}, wanted one of the {len(names)} increments on "
                    f"{os.path.join(self._directory, self._chain.base)!r}"
                )
            names = names[: names.index(os.path.basename(end)) + 1]
        elif end is not None:
            names = []
        self._end = end
        later = self._chain.increments[len(names) :]
        self._later = chain.Chain(self._chain.base, later).prefixes(self._directory)
        self._prefixes = chain.Chain(self._chain.base, names).prefixes(self._directory)
        self._read: dict[str, Increment] = {}

    def newer(self) -> list[Increment]:
        """Returns the increments after `since`, in order; reads no others."""
        found = self._after_since()
        if found is None and self._is_newest():
            return []
        if found is None and any(self._increment(prefix).version == self._record.version for prefix in self._later):
            raise ValueError(
                f"export_delta: checkpoint is {self._end!r}, which is older than {self._since} (made from "
                f"{self._record.checkpoint}); wanted a newer increment, or none for the newest"
            )
        if found is None or (not found and self._end is None and self._newest() not in (None, self._chain.base)):
            raise self._ended()
        return found

    def _after_since(self) -> list[Increment] | None:
        """Returns the increments after `since`, or None if it is not in the chain."""
        found: list[Increment] = []
        for prefix in reversed(self._prefixes):
            increment = self._increment(prefix)
            if increment.version == self._record.version:
                return found
            if found and found[0].previous != increment.version:
                raise tf.errors.DataLossError(
                    None,
                    None,
                    f"{found[0].prefix} builds on checkpoint id {found[0].previous}, but the increment before it, "
                    f"{prefix}, has id {increment.version}",
                )
            found.insert(0, increment)
            if increment.previous == self._record.version:
                return found
        return None

    def before(self) -> list[Increment]:
        """Returns the full checkpoint and the increments up to `since`."""
        base = [os.path.join(self._directory, self._chain.base)]
        newer = {one.prefix for one in self.newer()}
        return [self._increment(prefix) for prefix in [*base, *self._prefixes] if prefix not in newer]

    def check_present(self, error: Exception) -> None:
        """Raises FailedPreconditionError if a newer full checkpoint is why something is missing.

        Either a new chain began, and its increments took the place of those that were read; or the next one did not
        begin yet, and the session has removed the full checkpoint of this one.
        """
        now = chain.Chain.read(self._directory) or chain.Chain("", [])
        read = [os.path.basename(prefix) for prefix in self._prefixes]
        is_other = now.base != self._chain.base or now.increments[: len(read)] != read
        base = os.path.join(self._directory, self._chain.base)
        if is_other or (self._newest() not in (None, self._chain.base) and not _gfile.exists(f"{base}.index")):
            raise self._ended() from error

    def _increment(self, prefix: str) -> Increment:
        if prefix not in self._read:
            self._read[prefix] = Increment(prefix)
        return self._read[prefix]

    def _is_newest(self) -> bool:
        """Returns whether the chain did not begin yet on the full checkpoint of `since`."""
        path = self._record.checkpoint
        if self._record.sequence or not _gfile.exists(f"{path}.index"):
            return False
        is_last = self._newest() in (None, os.path.basename(path))
        return is_last and Increment(path).version == self._record.version

    def _newest(self) -> str | None:
        """Returns the name of the newest full checkpoint, which may be newer than the chain."""
        newest = tf.train.latest_checkpoint(self._directory)
        return None if newest is None else os.path.basename(newest)

    def _ended(self) -> tf.errors.OpError:
        return tf.errors.FailedPreconditionError(
            None,
            None,
            f"export_delta: no increment in {os.path.join(self._directory, chain.FOLDER)} continues {self._since} "
            f"(version {self._record.version}), and the newest full checkpoint is {self._newest()}; a full export is "
            "needed",
        )


def _merged(record: Record, newer: Sequence[Increment], history: _History) -> dict[str, np.ndarray]:
    """Returns the tensors of the delta that has the effect of several increments."""
    tensors = {checkpoint_ids.TENSOR: np.array([newer[-1].version, record.version], np.int64)}
    for name, (shape, dtype) in record.variables.items():
        if shape:
            ids, values = _changed_rows(name, shape, dtype, newer, history)
            tensors[delta_files.changed_ids(name)], tensors[delta_files.changed_values(name)] = ids, values
        else:
            tensors[name] = newer[-1].tensor(name)
    for name, (dim, key_dtype) in record.tables.items():
        removed = [one.tensor(f"{name}-changed-removed") for one in newer]
        if key_dtype == tf.string and any(map(len, removed)):
            removed = _strings(name, removed, [*history.before(), *newer])
        keys, values, gone = _changed_keys(name, dim, key_dtype, newer, removed)
        tensors[delta_files.changed_keys(name)], tensors[delta_files.changed_values(name)] = keys, values
        tensors[delta_files.removed_keys(name)] = gone
    return tensors


def _changed_rows(
    name: str, shape: Sequence[int], dtype: tf.DType, newer: Sequence[Increment], history: _History
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers, and the values, of a variable's rows that changed."""
    if not any(name in one.shapes for one in newer):
        changed = Rows(name, newer)
        return changed.ids, changed.values
    # An increment has the variable whole. Only rows that have other bits than before go into the delta.
    before = history.before()
    old, new = Rows(name, before), Rows(name, [*before, *newer])
    ids: list[np.ndarray] = [np.zeros([0], np.int64)]
    values: list[np.ndarray] = [np.zeros([0, *shape[1:]], dtype.as_numpy_dtype)]
    for first, stop in pieces_of(shape, dtype):
        rows = new.read(first, stop)
        changed_here = np.flatnonzero(_differ(rows, old.read(first, stop)))
        ids.append(changed_here + first)
        values.append(rows[changed_here])
    return np.concatenate(ids), np.concatenate(values)


def _differ(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns whether each row has other bits than the other one, [N]; so 0 and -0 differ, and equal NaN do not."""
    if rows.dtype == object or not rows.size:
        return (rows != others).reshape(len(rows), -1).any(1)
    as_bytes = [np.ascontiguousarray(array).reshape(len(rows), -1).view(np.uint8) for array in (rows, others)]
    return (as_bytes[0] != as_bytes[1]).any(1)


def _changed_keys(
    name: str, dim: int, key_dtype: tf.DType, newer: Sequence[Increment], removed: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the changed keys of a dynamic table and their rows, and the keys that are gone.

    Each increment removes keys first, and then sets rows.
    """
    events, sources, places = [], [], []
    for i, increment in enumerate(newer):
        changed = increment.tensor(delta_files.changed_keys(name))
        events += [removed[i], changed]
        sources += [np.full(len(removed[i]), -1), np.full(len(changed), i)]
        places += [np.zeros(len(removed[i]), np.int64), np.arange(len(changed))]
    # The first of the reversed events of a key is its last one.
    keys, last = np.unique(np.concatenate(events)[::-1], return_index=True)
    source, place = (np.concatenate(parts)[::-1][last] for parts in (sources, places))
    is_there = source >= 0
    values: np.ndarray = np.empty([is_there.sum(), dim], np.float32)
    read_places(newer, delta_files.changed_values(name), source[is_there], place[is_there], values)
    dtype = object if key_dtype == tf.string else np.int64
    return keys[is_there].astype(dtype), values, keys[~is_there].astype(dtype)


def _strings(name: str, removed: Sequence[np.ndarray], checkpoints: Sequence[Increment]) -> list[np.ndarray]:
    """Returns the strings of removed keys' numbers, for each increment.

    Numbers of keys that no checkpoint had are left out: they came and went between two increments.
    """
    found: dict[int, set[bytes]] = {}
    wanted = np.unique(np.concatenate(removed))
    # A key has its second number only if another one has its first. A third one is not expected with 64 bits.
    for salt in (0, 1):
        for one in checkpoints:
            keys = one.tensor(f"{name}-keys" if f"{name}-keys" in one.shapes else delta_files.changed_keys(name))
            numbers = string_numbers.numbers_of(keys.tolist(), salt)
            for i in np.flatnonzero(np.isin(numbers, wanted)):
                found.setdefault(int(numbers[i]), set()).add(keys[i])
        wanted = wanted[~np.isin(wanted, np.fromiter(found, np.int64, len(found)))]
        if not len(wanted):
            break
    for number, strings in found.items():
        if len(strings) > 1:
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                f"export_delta: of table {name!r} the keys {sorted(strings)} share the number {number}, which was "
                "removed; a full export is needed",
            )
    as_strings = [[next(iter(found[n])) for n in numbers.tolist() if n in found] for numbers in removed]
    return [np.array(strings, object) for strings in as_strings]


def _write(target: str, record: Record, tensors: dict[str, np.ndarray]) -> None:
    """Writes a delta, complete or not at all; removes what a killed process has left."""
    directory, name = os.path.split(target)
    with (
        file_errors.raised(f"export_delta to {target} failed"),
        whole_files.draft_folder(directory, name) as draft,
    ):
        _gfile.makedirs(draft)
        _save(os.path.join(draft, delta_files.DELTA_PREFIX), tensors)
        delta_files.write_delta_record(draft, record)
        _rename(draft, target)


def _rename(draft: str, target: str) -> None:
    try:
        whole_files.rename_folder(draft, target)
    except tf.errors.OpError as error:
        if _gfile.exists(target):
            raise FileExistsError(f"export_delta: another process made {target} at the same time") from error
        raise


def _save(prefix: str, tensors: dict[str, np.ndarray]) -> None:
    with tf.Graph().as_default(), host_session() as session, tf.device("CPU:0"):
        fed = {_tf1.placeholder(tf.as_dtype(array.dtype), array.shape): array for array in tensors.values()}
        save = tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=list(tensors), shape_and_slices=[""] * len(tensors), tensors=list(fed)
        )
        session.run(save, fed)
