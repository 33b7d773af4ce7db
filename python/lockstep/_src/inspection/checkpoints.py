"""Descriptions of TensorFlow's checkpoints: tables, other tensors, and who wrote them (docs/checkpoint_format.md)."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from lockstep._src.inspection.description import Description, InspectError
from lockstep._src.saving import bundle
from lockstep._src.saving.chain import FOLDER, increments_on
from lockstep._src.saving.latest import latest_checkpoint

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_STEP = "global_step"
# The tensors of a dynamic table `e`, after its name; slots are named `e/<slot>`.
_OF_TABLE = re.compile(
    r"-(keys|values|freqs|versions|seconds|filter|filter_options|slots|slot_initials|parts|clock|sweep|link|removed|"
    r"key_owner)(_filtered)?$"
)
# The description of a dynamic table, whose values are unknown.
EMPTY_TABLE: Mapping[str, Any] = {
    "name": "",
    "rows": None,
    "width": None,
    "keys": "",
    "slots": [],
    "counted": None,
    "removed": None,
    "changes_only": None,
    "rows_of_workers": None,
    "bytes": 0,
}
# Only small tensors are read.
_MOST_VALUE_BYTES = 1 << 20
_CHANGED = "-changed"  # in an increment, between the table's name and these
_POSITION = re.compile(r"_STATE/worker_(\d+)_of_(\d+)$")


@dataclasses.dataclass
class Stored:
    """A tensor of a checkpoint.

    Attributes:
      dtype: The name of its type.
      shape: Its whole shape.
      size: Its bytes in the data files.
      slices: In how many slices it was written; 1 for a tensor in one piece.
    """

    dtype: str = ""
    shape: tuple[int, ...] = ()
    size: int = 0
    slices: int = 1


def describe_folder(folder: str) -> Description:
    """Describes the last checkpoint of a folder, and the increments that build on it.

    Raises:
      InspectError: the state file, the checkpoint or the list of increments is damaged, or no checkpoint exists.
    """
    try:
        prefix = latest_checkpoint(folder)
        increments = [] if prefix is None else increments_on(os.path.join(folder, os.path.basename(prefix)))
    except (tf.errors.OpError, ValueError) as error:
        raise InspectError(getattr(error, "message", str(error))) from None
    if prefix is None:
        there = sorted(
            name[: -len(".index")]
            for name in os.listdir(folder)
            if name.endswith(".index") and os.path.isfile(os.path.join(folder, name))
        )
        if len(there) != 1:
            raise InspectError(f"{folder}: no state file names its last checkpoint; it has {there or 'none'}")
        prefix = os.path.join(folder, there[0])
    described = describe(prefix)
    if increments:
        paths = [os.path.join(folder, FOLDER, name) for name in increments]
        described["increments"] = [{"checkpoint": one, **_sizes(describe(one))} for one in paths]
    return described


def _sizes(described: Description) -> dict[str, Any]:
    return {"step": described["step"], "bytes": described["bytes"]}


def describe(prefix: str) -> Description:
    """Describes a checkpoint.

    Args:
      prefix: Its files' common beginning, without `.index`.

    Raises:
      InspectError: the index is damaged, or a data file is missing or too short.
    """
    try:
        header, entries = bundle.read_index(prefix)
        _check_entries(prefix, header.num_shards, entries)
        tensors = _tensors(entries)
        data_files = _check_data(prefix, header.num_shards, entries)
        numbers = functools.partial(_numbers, prefix, header.num_shards, entries)
        step = numbers(_STEP) if _STEP in tensors and not tensors[_STEP].shape else None
        tables, rest = _tables(tensors, numbers)
    except InspectError:
        raise
    except ValueError as error:
        raise InspectError(str(error)) from None
    except Exception as error:  # anything may be wrong with an index whose checksums are right
        text = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
        raise InspectError(f"{prefix}: its index is damaged: {text}") from None
    positions = [found for name in rest if (found := _POSITION.search(name))]
    return {
        "checkpoint": prefix,
        "step": step[0] if step else None,
        "written_by": _writer(tensors, tables, positions),
        "workers": _workers(tables, positions),
        "data_files": data_files,
        "bytes": sum(one.size for one in tensors.values()),
        "dynamic tables": tables,
        "tensors": _variables({name: one for name, one in rest.items() if not _POSITION.search(name)}),
        "positions in the data": len(positions) or None,
    }


def _tensors(entries: list[tuple[str, Any]]) -> dict[str, Stored]:
    tensors: dict[str, Stored] = {}
    whole: set[str] = set()
    for name, entry in sorted(entries, key=lambda item: not item[1].slices):  # Whole tensors come before their slices.
        stored = tensors.setdefault(name, Stored())
        stored.size += entry.size
        if name not in whole:
            whole.add(name)
            stored.dtype = tf.dtypes.as_dtype(entry.dtype).name
            stored.shape = tuple(dim.size for dim in entry.shape.dim)
            stored.slices = max(1, len(entry.slices))
    return tensors


def _check_entries(prefix: str, shards: int, entries: list[tuple[str, Any]]) -> None:
    """Checks the numbers in the index. Sizes become lengths of what is read."""
    for name, entry in entries:
        dtype = tf.dtypes.as_dtype(entry.dtype)
        sizes = [dim.size for dim in entry.shape.dim]
        good = 0 <= entry.shard_id < shards and entry.offset >= 0 and entry.size >= 0 and min(sizes, default=0) >= 0
        # The size of strings depends on their lengths, and a sliced tensor has no bytes of its own.
        if good and dtype.is_numpy_compatible and dtype.size and dtype != tf.string and not entry.slices:
            good = math.prod(sizes) * dtype.size == entry.size
        if not good:
            raise InspectError(f"{prefix}.index is damaged: the entry of {name!r} contradicts itself")


def _numbers(prefix: str, shards: int, entries: list[tuple[str, Any]], name: str) -> list[int] | None:
    """Returns the integers of a small tensor; None if there is no such tensor."""
    found = [entry for its_name, entry in entries if its_name == name]
    if len(found) != 1 or found[0].size > _MOST_VALUE_BYTES or not tf.dtypes.as_dtype(found[0].dtype).is_integer:
        return None
    data = bundle.read_value(prefix, shards, found[0])
    return np.frombuffer(data, tf.dtypes.as_dtype(found[0].dtype).as_numpy_dtype).tolist()


def object_graph(prefix: str) -> tuple[bytes, dict[str, int]]:
    """Returns the graph of a checkpoint's objects, which may be empty, and the checksums of its tensors.

    Raises:
      ValueError: the checkpoint is damaged.
    """
    header, entries = bundle.read_index(prefix)
    by_name = dict(entries)
    entry = by_name.get(OBJECT_GRAPH)
    graph = b"" if entry is None else bundle.string_in(bundle.read_value(prefix, header.num_shards, entry))
    return graph, {name: one.crc32c for name, one in entries}


def _check_data(prefix: str, shards: int, entries: list[tuple[str, Any]]) -> int:
    """Compares the lengths of the data files with the index; returns their number."""
    ends: collections.Counter[int] = collections.Counter()
    for _, entry in entries:
        ends[entry.shard_id] = max(ends[entry.shard_id], entry.offset + entry.size)
    for shard in range(shards):
        path = f"{prefix}.data-{shard:05d}-of-{shards:05d}"
        wanted = ends[shard]
        try:
            size = tf.io.gfile.stat(path).length
        except tf.errors.NotFoundError:
            raise InspectError(f"{path} is missing: the index of the checkpoint names it") from None
        if size < wanted:
            raise InspectError(f"{path} has {size} bytes, wanted {wanted} by the checkpoint's index: it is cut off")
    return shards


def _tables(
    tensors: Mapping[str, Stored], numbers: Callable[[str], list[int] | None]
) -> tuple[list[dict[str, Any]], dict[str, Stored]]:
    """Returns the dynamic tables, and the tensors that belong to none."""
    rest, tables = dict(tensors), []
    for name in sorted(one[: -len("-keys")] for one in tensors if one.endswith("-keys")):
        if f"{name}-values" not in tensors:
            continue
        keys, values = tensors[f"{name}-keys"], tensors[f"{name}-values"]
        slots = sorted(one[len(name) + 1 :] for one in tensors if one.startswith(f"{name}/"))
        mine = [f"{name}/{slot}" for slot in slots]
        mine += [one for one in tensors if one.startswith(f"{name}-") and _OF_TABLE.fullmatch(one[len(name) :])]
        counted, removed = (tensors.get(f"{name}-{what}") for what in ("keys_filtered", "removed"))
        parts = f"{name}-parts"
        tables.append(
            {
                **EMPTY_TABLE,
                "name": name.removesuffix(_CHANGED),
                "rows": keys.shape[0],
                "width": values.shape[-1],
                "keys": keys.dtype,
                "slots": slots,
                "counted": counted.shape[0] if counted else None,
                "removed": removed.shape[0] if removed else None,
                "changes_only": True if name.endswith(_CHANGED) else None,
                "rows_of_workers": numbers(parts) if parts in tensors else None,
                "bytes": sum(tensors[one].size for one in mine),
            }
        )
        for one in mine:
            rest.pop(one, None)
    for table in tables:  # The places where workers' rows begin become numbers of rows.
        ends = table["rows_of_workers"]
        table["rows_of_workers"] = [b - a for a, b in zip(ends, ends[1:], strict=False)] if ends else None
    return tables, rest


def _variables(tensors: Mapping[str, Stored]) -> list[dict[str, Any]]:
    """Returns the tensors that are not slots of others, each with its slots: `w/Adagrad` is a slot of `w`."""
    owners = {name: _owner(name, tensors) for name in tensors}
    rows = []
    for name in sorted(name for name in tensors if not owners[name] and name != OBJECT_GRAPH):
        one = tensors[name]
        slots = sorted(slot[len(name) + 1 :] for slot, owner in owners.items() if owner == name)
        size = one.size + sum(tensors[f"{name}/{slot}"].size for slot in slots)
        rows.append(
            {
                "name": name,
                "type": one.dtype,
                "shape": "x".join(map(str, one.shape)) or "scalar",
                "slots": slots,
                "slices": one.slices if one.slices > 1 else None,
                "bytes": size,
            }
        )
    return rows


def _owner(name: str, tensors: Mapping[str, Stored]) -> str:
    """Returns the variable that this tensor is a slot of, "" for none: a prefix of its name with the same rows."""
    end = name.rfind("/")
    while end > 0:
        owner = name[:end]
        if owner in tensors and tensors[owner].shape[:1] == tensors[name].shape[:1]:
            return owner
        end = name.rfind("/", 0, end)
    return ""


def _writer(tensors: Mapping[str, Stored], tables: list[dict[str, Any]], positions: list[Any]) -> str:
    """Returns the program that wrote the checkpoint, as far as its tensors show it."""
    if positions or any(name.endswith("-link") for name in tensors):
        return "Lockstep"
    if any(name.endswith("-partition_offset") for name in tensors):
        return "DeepRec"
    if OBJECT_GRAPH in tensors:
        return "tf.train.Checkpoint or Keras"
    return "tf.compat.v1.train.Saver" + (", an export" if tables else "")


def _workers(tables: list[dict[str, Any]], positions: list[Any]) -> int | None:
    """Returns the number of workers that wrote it; None if the tensors do not show it."""
    if positions:
        return int(positions[0][2])
    return next((len(table["rows_of_workers"]) for table in tables if table["rows_of_workers"]), None)
