"""Comparison of two runs: are their checkpoints equal bit for bit, and did both see the same batches?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

# Tensors of a dynamic table's rows, by the end of their names.
_OF_ROWS = ("keys", "values", "freqs", "versions", "seconds")


def checkpoint(folder: Path, step: int) -> dict[str, np.ndarray]:
    """Returns all tensors of the last checkpoint, which must be of step `step`.

    Rows of dynamic tables are ordered by their keys. The numbers that distinguish checkpoints are left out. So are
    positions in the data, which the following batches check.
    """
    path = tf.train.latest_checkpoint(folder)
    assert path is not None and path.endswith(f"-{step}"), (
        f"{folder}: the last checkpoint is {path}, wanted step {step}"
    )
    reader = tf.train.load_checkpoint(path)
    types = reader.get_variable_to_dtype_map()
    read = {
        name: reader.get_tensor(name)
        for name, dtype in types.items()
        if dtype != tf.variant and not name.endswith("-link")
    }
    for table in [name.removesuffix("-keys") for name in read if name.endswith("-keys")]:
        slots = [f"{table}/{slot.decode()}" for slot in read[f"{table}-slots"]]
        rows = [f"{table}-{what}" for what in _OF_ROWS]
        for names in ([*rows, *slots], [f"{name}_filtered" for name in rows]):
            if names[0] in read:
                order = np.argsort(read[names[0]])
                read.update({name: read[name][order] for name in names if name in read})
    return read


def differences(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> list[str]:
    """Returns a line for each tensor that differs."""
    lines = [f"{name} is in only one of both" for name in sorted(got.keys() ^ wanted.keys())]
    for name in sorted(got.keys() & wanted.keys()):
        mine, other = got[name], wanted[name]
        if mine.shape != other.shape:
            lines.append(f"{name} is {mine.shape}, wanted {other.shape}")
        elif mine.tobytes() != other.tobytes() if mine.dtype != object else (mine != other).any():
            lines.append(f"{name} differs in {(mine != other).sum()} of {mine.size} values")
    return lines


def not_finite(tensors: dict[str, np.ndarray]) -> list[str]:
    """Returns the names of tensors with NaN or infinite values."""
    floats = {name: value for name, value in tensors.items() if np.issubdtype(value.dtype, np.floating)}
    return sorted(name for name, value in floats.items() if not np.isfinite(value).all())


def batches(folder: Path, rank: int) -> tuple[dict[int, str], list[int]]:
    """Returns a worker's batch of each step, and the steps at which its starts began.

    Raises:
      AssertionError: a repeated step had different batches before and after a restart.
    """
    seen: dict[int, str] = {}
    begins: list[int] = []
    for line in (folder / f"batches.{rank}").read_text().splitlines():
        step, ids = line.split()
        if step == "begin":
            begins.append(int(ids))
        else:
            first = seen.setdefault(int(step), ids)
            assert first == ids, f"rank {rank}: step {step} had batch {first}, and after a restart {ids}"
    return seen, begins


def check_batches(folder: Path, undisturbed: Path, workers: int) -> int:
    """Checks that a run's steps had the batches of an undisturbed run. Returns the number of repeated steps.

    Raises:
      AssertionError: a step had another batch. A worker may be killed after it saved a step and before it reported it;
        such a step is not compared.
    """
    again = 0
    for rank in range(workers):
        got, begins = batches(folder, rank)
        wanted, _ = batches(undisturbed, rank)
        different = [step for step, ids in wanted.items() if got.get(step, ids) != ids]
        assert not different, f"rank {rank}: different batches in steps {different[:10]}"
        unreported = sorted(wanted.keys() - got.keys() - set(begins))
        assert not unreported, f"rank {rank}: no report of steps {unreported[:10]}"
        made = sum(not line.startswith("begin") for line in (folder / f"batches.{rank}").read_text().splitlines())
        again += made - len(got)
    return again
