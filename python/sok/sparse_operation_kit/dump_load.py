"""Tables, and the slots of optimizers, in files."""

from typing import Any

import numpy as np

from lockstep._src.compat.sok import dump as _dump
from lockstep._src.compat.sok import incremental_dump as _incremental_dump

__all__ = ["dump", "incremental_model_dump", "load"]


def dump(path: str, dump_vars: Any, optimizer: Any = None) -> None:
    """Writes tables into a folder, in SOK's format. All ranks call it together; programs in graph mode cannot.

    A table's files are `<name>-key`, `<name>-weight` and, with an optimizer, `<name>-<Optimizer>-<slot>`, where all
    punctuation of the variable's name is replaced by `_`. They get their names when all are complete.

    Args:
      path: the folder, which is made if it does not exist; all ranks have the same file system.
      dump_vars: a sok.Variable or sok.DynamicVariable, or a list of them.
      optimizer: the optimizer whose slots are written, too: SGD, Adamax, Adadelta, Adagrad, Ftrl or Adam, in
        `sok.OptimizerWrapper` for dynamic variables; or a list of one.

    The number of an optimizer's steps is not in the files, as in SOK.

    Raises:
      TypeError: another variable or optimizer.
      ValueError: a dynamic table is empty, the optimizer was built without some of the variables, or the arguments
        differ between ranks.
      OSError: a file cannot be written; on all ranks, and files of an earlier dump stay.
    """
    _dump.dump(path, dump_vars, optimizer)


def load(path: str, load_vars: Any, optimizer: Any = None) -> None:
    """Reads tables that `dump` or SOK wrote, on any number of ranks. All ranks call it together.

    Args:
      path: the folder.
      load_vars: variables with the names of those that were written, or one.
      optimizer: the optimizer whose slots are read, too.

    Raises:
      FileNotFoundError: the folder or a file is missing.
      ValueError: a file is damaged, or does not fit the variable; the message has its path. Nothing has changed.
      TypeError: another variable or optimizer.
    """
    _dump.load(path, load_vars, optimizer)


def incremental_model_dump(
    sok_vars: Any, time_threshold: Any, sess: Any = None
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns the keys that were looked up in training since a time, and their rows. All ranks call it together.

    Args:
      sok_vars: a sok.DynamicVariable of `var_type="hybrid"`, or a list of V.
      time_threshold: a `datetime.datetime`, or a list of 1 or V; without a time zone it is local time. Times are noted
        in whole seconds: it is rounded down.
      sess: the session, for programs in graph mode. The first call adds operations to the graph, so it comes before the
        graph is finalized.

    Returns:
      (keys, values): lists of V arrays [N] and [N, D], the same on all ranks, in the order of ranks.

    Raises:
      TypeError: another variable, or no time.
      ValueError: the number of times does not fit, or there is no session in graph mode.
    """
    return _incremental_dump.incremental_model_dump(sok_vars, time_threshold, sess)
