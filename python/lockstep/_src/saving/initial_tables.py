"""Dynamic tables with initial rows from a checkpoint: `tf.compat.v1.train.init_from_checkpoint`, warm starts.

TensorFlow's function looks in a graph's store of variables, which has no dynamic tables. It looks for tensors by the
names of variables, while a table has several tensors (tf/checkpoint/table_layout.h). It is wrapped while there are
tables. Its map may name a table in all of TensorFlow's forms:

| map | initial values |
| --- | --- |
| `'scope/': 'other/'`, `'/': '/'` | of all tables in the scope: rows, and slots if the table has been trained before |
| `'name': 'other'`, `'name': table`, `'name': [table]` | of one table: rows |

The same holds for variables: a scope has the slots that optimizers have already made. Counts, steps and filters are
not restored, because they belong to the training that has ended.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.saving import table_saveables
from lockstep._src.tables.dynamic.variable import DynamicVariable, dynamic_tables, is_dynamic

# The operations that make slots in a table.
_UPDATES = ("LockstepSparseUpdate", "LockstepDynamicTableWriteRows")


class _Named(NamedTuple):
    table: DynamicVariable
    name: str  # in the checkpoint


class Checkpoint:
    """The tables of a checkpoint.

    Args:
      path: a checkpoint's prefix, or a folder of checkpoints.
      who: the caller, for errors.
    """

    def __init__(self, path: Any, who: str) -> None:
        path = tf.compat.path_to_str(path)
        self._path = (tf.train.latest_checkpoint(path) if tf.io.gfile.isdir(path) else path) or path
        self._who = who
        reader = tf.train.load_checkpoint(self._path)
        self._shapes, self._dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()

    def initial(self, table: DynamicVariable, name: str, slots: bool = False) -> tf.Operation:
        """Returns the operation that creates a table with the rows that the checkpoint's table `name` has.

        Raises:
          ValueError: the checkpoint lacks the table, or has it with other keys or row sizes.
        """
        problem = table_saveables.misfit(self._shapes, self._dtypes, name, table.dim, table.key_dtype)
        if problem:
            raise ValueError(
                f"{self._who}: table '{table.logical_name}' cannot begin with checkpoint {self._path!r}: dynamic table "
                f"'{name}' {problem}{self._found(name)}"
            )
        part = "rows and slots" if slots else "rows"
        named = [_Named(table, name)]
        with tf.compat.v1.name_scope(None):
            return table_saveables.restore(named, tf.constant(self._path), changes=False, track=False, part=part)

    def _found(self, name: str) -> str:
        """Returns what the checkpoint has in place of a table, for an error."""
        if f"{name}-keys" in self._shapes:
            return ""
        tables = [
            key.removesuffix("-keys")
            for key in sorted(self._shapes)
            if key.endswith("-keys") and f"{key.removesuffix('-keys')}-values" in self._shapes
        ]
        found = f"has a variable '{name}' of shape {self._shapes[name]}" if name in self._shapes else "has no such name"
        return f"; the checkpoint {found}, and the dynamic tables {', '.join(tables) or '(none)'}; correct the map"


def _wrap(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def wrapped(ckpt_dir_or_file: Any, assignment_map: Any) -> None:
        pairs = list(assignment_map.items() if isinstance(assignment_map, Mapping) else assignment_map)
        tables = {table.logical_name: table for table in dynamic_tables()}
        named = [(key, _one_table(target, tables)) for key, target in pairs]
        of_variables = [pair for pair, (_, table) in zip(pairs, named, strict=True) if table is None]
        original(ckpt_dir_or_file, of_variables)
        found = [(table, key, False) for key, table in named if table is not None]
        for key, scope in of_variables:
            if isinstance(scope, str) and key.endswith("/"):
                found += [(table, name, _is_trained(table)) for table, name in _in_scope(tables, key, scope)]
        found = [one for one in found if one[0].is_initialized_here]
        if found:
            checkpoint = Checkpoint(ckpt_dir_or_file, "init_from_checkpoint")
            for table, name, slots in found:
                table.begin_with(checkpoint.initial(table, name, slots))

    return wrapped


def _one_table(target: Any, tables: Mapping[str, DynamicVariable]) -> DynamicVariable | None:
    """Returns the table that a value of the map means: by itself, in a list, or by its name."""
    if isinstance(target, str):
        return tables.get(target)
    several = list(target) if isinstance(target, (list, tuple)) else [target]
    if not any(map(is_dynamic, several)):
        return None
    if len(several) > 1:
        names = ", ".join(str(one.name) for one in several)
        raise ValueError(f"init_from_checkpoint: got the list {names}, wanted one dynamic table: it has no partitions")
    return several[0]


def _in_scope(tables: Mapping[str, DynamicVariable], key: str, scope: str) -> Iterator[tuple[DynamicVariable, str]]:
    """Yields the tables in a scope, with their names in the checkpoint; names are made as TensorFlow makes them."""
    prefix = scope[: scope.rindex("/")] if "/" in scope else ""
    for name in sorted(tables):
        if not prefix or name.startswith(f"{prefix}/"):
            rest = name[len(prefix) :] if scope == "/" or not prefix else name[len(prefix) + 1 :]
            yield tables[name], (rest if key == "/" else key + rest)


def _is_trained(table: DynamicVariable) -> bool:
    """Returns whether an optimizer of this graph updates the table already."""
    return not tf.executing_eagerly() and any(op.type in _UPDATES for op in table.handle.consumers())


def intercept(interception: Interception) -> None:
    """Makes TensorFlow's function find dynamic tables."""
    interception.replace(symbols.INIT_FROM_CHECKPOINT, _wrap)
