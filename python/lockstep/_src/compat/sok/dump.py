"""`sok.dump` and `sok.load`: tables and the slots of their optimizer in a folder of files; see files.py for the format.

Rank 0 writes the tables whose rows are on all ranks, and receives them in parts. A localized table is written by its
rank. All ranks read the files of a table in parts, and each keeps the keys that it owns. So the number of ranks that
wrote a table does not matter, nor do its kind and the order of its keys.

Both check everything before they change anything. A dump renames its files together, as its last step. A load that
finds a damaged file, or files of two dumps, leaves all variables as they were. An error of one rank is raised on all
ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lockstep._src.compat.sok import files, job, rows, slots, together
from lockstep._src.engine import whole_files


def dump(path: str | os.PathLike[str], dump_vars: Any, optimizer: Any = None) -> None:
    """Writes tables, and the slots of their optimizer, into a folder; see `sparse_operation_kit.dump`.

    All ranks must call this with the same arguments. Slots are written if the optimizer has some for a variable. As in
    the original, the files do not have the optimizer's number of steps.

    Args:
      path: the folder; it is made if there is none.
      dump_vars: a variable of SOK, or a list or tuple of them.
      optimizer: the optimizer, or a list or tuple of at most one.

    Raises:
      TypeError: an argument is not a variable or optimizer of SOK, or the format has no number for a variable's type.
      ValueError: a dynamic table is empty, two variables have the same files, the optimizer can have slots for a part
        of the variables only, there is more than one optimizer, or ranks gave different variables or slots.
      OSError: a file cannot be written.
      RuntimeError: the program is in graph mode.
    """
    attempt = together.Attempt(f"sok.dump into {path}")
    path, variables, optimizer = attempt.on_all(_checked, "sok.dump", path, "dump_vars", dump_vars, optimizer)
    _check_same_on_all("sok.dump", variables, optimizer)
    attempt.on_all(_make_folder, path)
    with_slots = optimizer is not None and _agree_on_slots(attempt, optimizer, variables)
    draft, number = together.gather_values([whole_files.draft_name("dump"), files.new_number()], "sok_draft")[0]
    files_of_each = 2 + (len(slots.names(optimizer)) if with_slots else 0)
    names = files.filter_of(files.table_name(variable.name) for variable in variables)
    of_dump = files.Dump(number, len(variables) * files_of_each, names)
    with files.StagedFiles(path, draft) as staged, together.GatherToChief() as exchange:
        for variable in variables:
            table = _TableDump(path, variable, attempt, staged, exchange, of_dump)
            table.write_table()
            if with_slots:
                table.write_slots(optimizer)
        attempt.on_all(staged.sync)
        # Rank 0 publishes the files of all ranks, unless they are on other file systems.
        attempt.on_all(lambda: staged.publish() if job.rank() == 0 else None)
        attempt.on_all(staged.publish, True)
    if job.rank() == 0:
        print("[SOK INFO] SOK dump weight in path:", path, " success!", flush=True)


def load(path: str | os.PathLike[str], load_vars: Any, optimizer: Any = None) -> None:
    """Reads tables, and the slots of their optimizer, from a folder; see `sparse_operation_kit.load`.

    All ranks must call this with the same arguments, and see the same files. A static table needs all its keys. A
    dynamic table receives the keys of the file, and keeps its other keys.

    As in the original, this does not restore the optimizer's number of steps (`iterations`). Rules that depend on it,
    such as Adam's correction of its moments, begin again at the optimizer's own number.

    An optimizer of Keras 3, or of Keras 2 that is not a legacy one, is built for the static variables if it is not
    built yet, and then takes no others. If it trains other variables as well, build it with all before the load.

    Args:
      path: the folder of the dump.
      load_vars: a variable of SOK, or a list or tuple of them.
      optimizer: the optimizer, or a list or tuple of at most one. Its slots are created; the dump must have all.

    Raises:
      FileNotFoundError: the folder or a file does not exist.
      files.DumpFileError: a file is damaged, does not fit its variable, or is of another dump than others.
      TypeError: an argument is not a variable or optimizer of SOK.
      ValueError: two variables have the same files, there is more than one optimizer, it was built without one of the
        variables, or ranks gave different variables or slots.
      RuntimeError: the program is in graph mode.
    """
    attempt = together.Attempt(f"sok.load from {path}")
    path, variables, optimizer = attempt.on_all(_checked, "sok.load", path, "load_vars", load_vars, optimizer)
    _check_same_on_all("sok.load", variables, optimizer)
    attempt.on_all(_check_folder, path)
    if optimizer is not None:
        attempt.on_all(slots.ensure, optimizer, variables)
    loads = attempt.on_all(lambda: [_TableLoad(path, variable, optimizer) for variable in variables])
    attempt.on_all(files.check_one_dump, path, [one.files for one in loads])
    for one in loads:
        attempt.do(one.read)
    attempt.settle()
    if job.rank() == 0:
        print("[SOK INFO] SOK load weight from path:", path, " success!", flush=True)


class _TableDump:
    """The dump of one table. All ranks make it together, and it reads this rank's rows.

    Args:
      folder: the folder of the dump.
      variable: the variable.
      attempt: the work of all ranks to which this belongs.
      staged: the files of the dump that this rank writes.
      exchange: brings rows to rank 0.
      of_dump: the dump, for headers.

    Raises:
      ValueError: the table has no keys.
    """

    def __init__(
        self,
        folder: str,
        variable: Any,
        attempt: together.Attempt,
        staged: files.StagedFiles,
        exchange: together.GatherToChief,
        of_dump: files.Dump,
    ) -> None:
        self._of_dump = of_dump
        self._folder, self._variable, self._attempt, self._staged = folder, variable, attempt, staged
        self._table = files.table_name(variable.name)
        # The rank that holds the table, or None if all hold a part of it.
        self._holder = None if variable.target_gpu < 0 else variable.target_gpu
        self._gather = exchange.gather if self._holder is None else lambda part: part
        self._keys, self._weights = attempt.on_all(self._read)
        counts = together.gather_counts(len(self._keys))
        if not sum(counts):
            raise ValueError(f"sok.dump: {variable.name!r}: got a table without keys, wanted at least one key")
        row_bytes = self._keys.itemsize + self._weights.itemsize * self._weights.shape[1]
        step = max(1, files.CHUNK_BYTES // (row_bytes * (job.num_ranks() if self._holder is None else 1)))
        # Each round writes the next keys of each rank. All files of a table have the same rounds, and so one order.
        self._rounds = [slice(start, start + step) for start in range(0, max(counts), step)]

    def _read(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns this rank's keys, in the type of the file, and its rows."""
        keys, weights = rows.read(self._variable)
        files.number_of(weights.dtype)
        return keys.astype(_dumped_key_type(self._variable), copy=False), weights

    def write_table(self) -> None:
        """Writes keys and weights, and forgets the weights."""
        key_path, path = files.key_path(self._folder, self._table), files.weight_path(self._folder, self._table)
        if self._is_writer():
            self._attempt.do(self._staged.create, key_path, self._header(files.FileType.KEY, self._keys))
        self._write_rows(self._weights, path, files.FileType.WEIGHT, "", key_path)
        del self._weights

    def write_slots(self, optimizer: Any) -> None:
        """Writes the slots of an optimizer."""
        kind = slots.optimizer_name(optimizer)
        for slot in slots.names(optimizer):
            values = self._attempt.on_all(self._read_slot, optimizer, slot)
            path = files.slot_path(self._folder, self._table, kind, slot)
            self._write_rows(values, path, files.FileType.SLOT, slot)

    def _header(self, file_type: files.FileType, values: np.ndarray, slot: str = "") -> files.Header:
        return files.Header(file_type, values.dtype, self._table, slot, self._of_dump)

    def _is_writer(self) -> bool:
        return job.rank() == (self._holder or 0)

    def _read_slot(self, optimizer: Any, slot: str) -> np.ndarray:
        values = slots.read(optimizer, self._variable, slot)
        files.number_of(values.dtype)
        if len(values) != len(self._keys):
            raise ValueError(
                f"{self._variable.name!r}: slot {slot!r}: got {len(values)} rows, wanted {len(self._keys)}, one for "
                "each key"
            )
        return values

    def _write_rows(
        self, values: np.ndarray, path: str, file_type: files.FileType, slot: str, key_path: str | None = None
    ) -> None:
        """Writes a file of rows, and the values of the file `key_path` unless it is None.

        The rows of a round are sorted by key. So a static table is in the order of its rows.
        """
        if self._is_writer():
            self._attempt.do(self._staged.create, path, self._header(file_type, values, slot))
        dtype = np.dtype([("key", self._keys.dtype), ("row", values.dtype, values.shape[1:])])
        for part in self._rounds:
            own = np.empty(len(self._keys[part]), dtype)
            own["key"], own["row"] = self._keys[part], values[part]
            gathered = self._gather(own)
            if self._is_writer():
                self._attempt.do(self._append, gathered, path, key_path)

    def _append(self, part: np.ndarray, path: str, key_path: str | None) -> None:
        part = part[np.argsort(part["key"], kind="stable")]
        if key_path is not None:
            self._staged.append(key_path, part["key"])
        self._staged.append(path, part["row"])


class _TableLoad:
    """The load of one table, whose files are checked when this is made.

    Args:
      folder: the folder of the dump.
      variable: the variable.
      optimizer: the optimizer whose slots are loaded, or None.

    Attributes:
      files: the files of the table.
    """

    def __init__(self, folder: str, variable: Any, optimizer: Any) -> None:
        self._variable, self._optimizer = variable, optimizer
        kind, names = ("", []) if optimizer is None else (slots.optimizer_name(optimizer), slots.names(optimizer))
        self._num_rows = None if rows.is_dynamic(variable) else int(variable.global_shape[0])
        dimension = int(variable.dimension if self._num_rows is None else variable.global_shape[1])
        self._key_type = np.dtype(np.int64)
        if self._num_rows is None:
            self._key_type = np.dtype(tf.as_dtype(variable.key_type).as_numpy_dtype)
        self._dtype = np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype)
        self.files = files.TableFiles(folder, files.table_name(variable.name), dimension, kind, names)
        for file in (self.files.weights, *self.files.slots.values()):
            if not np.can_cast(file.dtype, self._dtype, "same_kind"):
                raise files.DumpFileError(
                    file.path, f"values of type {file.dtype.name}", f"a type that converts to {self._dtype.name}"
                )
        self._check_keys()

    def _check_keys(self) -> None:
        path, num_keys = self.files.keys.path, self.files.num_keys
        own = [keys[rows.owns(self._variable, keys)] for keys in map(self._converted, self.files.key_chunks())]
        keys = np.sort(np.concatenate(own)) if own else np.empty(0, self._key_type)
        repeated = keys[1:][keys[1:] == keys[:-1]]
        if repeated.size:
            raise files.DumpFileError(path, f"key {repeated[0]} more than once", "each key once")
        # The keys are in range and differ from each other, so this number of keys has all of them.
        if self._num_rows is not None and num_keys != self._num_rows:
            raise files.DumpFileError(path, f"{num_keys} keys", f"all {self._num_rows} keys of the static table")

    def _converted(self, keys: np.ndarray) -> np.ndarray:
        """Returns keys in the variable's type, after a check that they fit."""
        low, high = np.iinfo(self._key_type).min, np.iinfo(self._key_type).max
        wanted = f"keys of type {self._key_type.name}"
        if self._num_rows is not None:
            low, high = 0, self._num_rows - 1
            wanted = f"keys from 0 to {high}, the rows of the static table"
        for key in (int(keys.min()), int(keys.max())):
            if not low <= key <= high:
                raise files.DumpFileError(self.files.keys.path, f"key {key}", wanted)
        return keys.astype(self._key_type, copy=False)

    def read(self) -> None:
        """Gives the variable and the slots the rows of the keys that this rank owns."""
        for keys, values in self._own_rows(self.files.weights):
            rows.write(self._variable, keys, values)
        for slot, file in self.files.slots.items():
            for keys, values in self._own_rows(file):
                slots.write(self._optimizer, self._variable, slot, keys, values)

    def _own_rows(self, file: files.ValuesFile) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the keys [n] that this rank owns, and their rows [n, D], in the types of the variable."""
        for all_keys, values in self.files.row_chunks(file):
            keys = self._converted(all_keys)
            own = rows.owns(self._variable, keys)
            if own.any():
                yield keys[own], values[own].astype(self._dtype, copy=False)


def _checked(
    what: str, path: str | os.PathLike[str], argument: str, variables: Any, optimizer: Any
) -> tuple[str, Sequence[Any], Any]:
    """Returns the path, the variables as a list, and the optimizer or None, after checks of this rank's arguments."""
    if not tf.executing_eagerly():
        raise RuntimeError(f"{what}: got a program in graph mode, wanted eager execution, outside of tf.function")
    optimizer = _as_optimizer(optimizer)
    if optimizer is not None:
        slots.optimizer_name(optimizer)
    return os.fspath(path), _as_variables(argument, variables), optimizer


def _check_same_on_all(what: str, variables: Sequence[Any], optimizer: Any) -> None:
    """Raises ValueError on all ranks if they do not have the same tables and slots, which are exchanged in order."""
    tables = [files.table_name(variable.name) for variable in variables]
    of_optimizer = None if optimizer is None else [slots.optimizer_name(optimizer), *slots.names(optimizer)]
    together.check_same(f"{what}: variables", tables)
    together.check_same(f"{what}: optimizer and slots", of_optimizer)


def _as_variables(what: str, variables: Any) -> Sequence[Any]:
    """Returns the argument as a list of variables with different names of files."""
    listed = list(variables) if isinstance(variables, (list, tuple)) else [variables]
    by_table: dict[str, Any] = {}
    for variable in listed:
        if not hasattr(variable, "target_gpu"):
            raise TypeError(f"{what}: got {variable!r:.200}, wanted sok.Variable or sok.DynamicVariable")
        other = by_table.setdefault(files.table_name(variable.name), variable)
        if other is not variable:
            raise ValueError(
                f"{what}: got {other.name!r} and {variable.name!r}, which would have the same files; wanted names that "
                "differ in more than punctuation"
            )
    return list(by_table.values())


def _as_optimizer(optimizer: Any) -> Any:
    if not isinstance(optimizer, (list, tuple)):
        return optimizer
    if len(optimizer) > 1:
        raise ValueError(f"optimizer: got a list of {len(optimizer)} optimizers, wanted at most one")
    return optimizer[0] if optimizer else None


def _agree_on_slots(attempt: together.Attempt, optimizer: Any, variables: Sequence[Any]) -> bool:
    """Returns whether slots are to be written, the same on all ranks.

    An optimizer that has slots for a part of the variables gets those for the others, at their initial values: a load
    needs all of them.
    """
    has_some = attempt.on_all(lambda: any([slots.has(optimizer, variable) for variable in variables]))
    if not sum(together.gather_counts(has_some)):
        return False
    attempt.on_all(slots.ensure, optimizer, variables)
    return True


def _dumped_key_type(variable: Any) -> np.dtype:
    """Returns the type of keys in the file: int64, uint64 for a localized static table, or a dynamic table's type."""
    if rows.is_dynamic(variable):
        return np.dtype(tf.as_dtype(variable.key_type).as_numpy_dtype)
    return np.dtype(np.int64 if variable.target_gpu < 0 else np.uint64)


def _make_folder(path: str) -> None:
    os.makedirs(path, exist_ok=True)


def _check_folder(path: str) -> None:
    if not os.path.isdir(path):
        raise FileNotFoundError(f"{path}: found no such folder, wanted the folder of a dump")
