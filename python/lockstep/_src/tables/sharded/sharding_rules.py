"""How variables become sharded tables, and the rules that say which.

Whatever creates a variable asks the creators of its graph, and `tf.compat.v1.get_variable` its store before that. Both
are intercepted, for all graphs: a program may make its graph inside of a scope.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.tables.sharded import initial_values, shard
from lockstep._src.tables.sharded.table import RowShardedTable

# One of the parts that a partitioner cuts a variable into.
_PART = re.compile(r"(^|/)part_\d+$")


@dataclasses.dataclass(frozen=True)
class ShardingRules:
    """Which variables are worth sharding. Others are left as they are: replicated, and just as right.

    A sharded table must be a trainable matrix of a floating-point type whose shape is known; the rest is here. Lookups
    are what sharding is for: a variable that is multiplied whole would be gathered for that in each step, so the
    weights of dense layers are known by their names.
    """

    # Tables of so many rows and fewer are replicated: an exchange of the batch's rows costs more than what it saves,
    # and a table with fewer rows than workers would leave some without any.
    replicate_up_to_rows: int = 1
    # Last components of the names of variables that are replicated: what Keras and tf.layers call the weights of dense,
    # recurrent and convolutional layers.
    replicate_names: re.Pattern[str] = re.compile(r"(.*_)?kernel(_\d+)?")

    @classmethod
    def from_options(cls) -> ShardingRules | None:
        """As the context's options have it; None where they say that nothing is sharded."""
        options = context.options
        if not options.sharding or options.mode == "infer":
            return None
        return cls(replicate_up_to_rows=max(context.world_size, options.batch_size or 0))

    def apply_to(self, name: str | None, trainable: bool | None, dtype: Any, shape: tf.TensorShape) -> bool:
        """Whether a variable is to be sharded.

        Args:
          name: of the variable.
          trainable: None is True.
          dtype: None where the initial value's is not known to be another than floating point.
          shape: of the whole variable.
        """
        name = (name or "").split(":")[0]
        return (
            # Slots of optimizers are not trainable: they have the shape of the shard already.
            trainable is not False
            and (dtype is None or tf.as_dtype(dtype).is_floating)
            and shape.rank == 2
            and shape.is_fully_defined()
            and shape.as_list()[0] > self.replicate_up_to_rows
            and not _PART.search(name)
            and not self.replicate_names.fullmatch(name.rsplit("/", 1)[-1])
        )


# Makes a variable of the arguments of `tf.Variable`, or asks the next creator to.
Creator = Callable[..., tf.Variable]


@contextlib.contextmanager
def sharding_scope(rules: ShardingRules | None = None) -> Iterator[None]:
    """Makes variables that are created inside, in whatever way, sharded tables where the rules say so.

    A partitioner does nothing to a sharded table: it stays one variable, split by rows over the workers.

    Args:
      rules: None for those of the context's options at the time of creation.
    """
    with Interception(symbols.SCOPE) as interception:
        intercept_creation(interception, lambda: rules or ShardingRules.from_options())
        yield


def intercept_creation(
    interception: Interception,
    current_rules: Callable[[], ShardingRules | None] = ShardingRules.from_options,
    replicated: Creator | None = None,
) -> None:
    """Makes variables that are created while the interception lasts sharded tables where the rules say so.

    Args:
      interception: takes the replacements.
      current_rules: called at each creation; None shards nothing.
      replicated: creates the variables that are neither tables nor their slots; called as creators are,
        `replicated(next_creator, ...)`.
    """
    lasting = True
    making = _Making()

    def create(next_creator: Creator, **kwargs: Any) -> tf.Variable:
        # A stack of creators that was saved meanwhile may be put back after the end.
        if not lasting or making.slot_of_table:
            return next_creator(**kwargs)
        rules = current_rules()
        if rules is not None and _is_sharded_by(rules, kwargs):
            return RowShardedTable(**kwargs)
        return next_creator(**kwargs) if replicated is None else replicated(next_creator, **kwargs)

    # With priority 0 it is the innermost: it sees what the program's own creators make of the arguments.
    entry = (0, create)

    def stack(original: property) -> property:
        def get(graph: tf.Graph) -> list[tuple[int, Creator]]:
            creators = original.fget(graph)
            return creators if not lasting or entry in creators else [entry, *creators]

        return property(get, original.fset)

    def end() -> None:
        nonlocal lasting
        lasting = False

    interception.on_undo(end)
    interception.replace(symbols.CREATOR_STACK, stack)
    interception.replace(symbols.GET_VARIABLE, functools.partial(_wrap_store, current_rules))
    interception.replace(symbols.CREATE_SLOT, making.wrap)
    interception.replace(symbols.LOOKUP, _wrap_lookup)


class _Making(threading.local):
    """What this thread is making."""

    slot_of_table = False

    def wrap(self, create_slot: Callable[..., tf.Variable]) -> Callable[..., tf.Variable]:
        """TensorFlow's creation of slots: that of a table's has the shape of the shard, and differs between workers."""

        @functools.wraps(create_slot)
        def wrapped(primary: Any, *args: Any, **kwargs: Any) -> tf.Variable:
            before, self.slot_of_table = self.slot_of_table, shard.is_sharded(primary)
            try:
                return create_slot(primary, *args, **kwargs)
            finally:
                self.slot_of_table = before

        return wrapped


def _is_sharded_by(rules: ShardingRules, kwargs: dict[str, Any]) -> bool:
    """Whether a variable of these arguments becomes a table; if so, its shape is written into them."""
    initial_value = kwargs.get("initial_value")
    if kwargs.get("trainable") is False or kwargs.get("variable_def") is not None or initial_value is None:
        return False
    shape = initial_values.shape_of(initial_value, kwargs.get("shape"))
    dtype = kwargs.get("dtype") or getattr(initial_value, "dtype", None)
    if not rules.apply_to(kwargs.get("name"), kwargs.get("trainable"), dtype, shape):
        return False
    kwargs["shape"] = shape
    return True


def _wrap_store(current_rules: Callable[[], ShardingRules | None], get_variable: Callable[..., Any]) -> Any:
    """The method behind `tf.compat.v1.get_variable`, which does two things before any creator is asked.

    It compares shapes where it reuses a variable, and splits one where there is a partitioner.
    """

    @functools.wraps(get_variable)
    def wrapped(store: Any, name: str, *args: Any, **kwargs: Any) -> tf.Variable:
        kwargs.update(zip(("shape", "dtype", "initializer"), args, strict=False))
        table = next((t for t in shard.tables() if t.logical_name == name), None)
        if table is not None:
            shape = kwargs.get("shape")
            if shape is not None and not table.logical_shape.is_compatible_with(shape):
                raise ValueError(
                    f"Trying to share variable {name}, but specified shape {tf.TensorShape(shape)} and found shape "
                    f"{table.logical_shape}."
                )
            # What it is compared with is the shard's.
            kwargs.update(shape=shape if shape is None else table.shape, partitioner=None)
        elif kwargs.get("partitioner") is not None and _would_be_sharded(current_rules(), name, kwargs):
            kwargs["partitioner"] = None
        return get_variable(store, name, **kwargs)

    return wrapped


def _wrap_lookup(lookup: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """TensorFlow's lookup in one or several tables, which asks several for their first dimension to divide ids up.

    A table tells it that of the shard.
    """

    @functools.wraps(lookup)
    def wrapped(params: Any, ids: Any, partition_strategy: str = "mod", *args: Any, **kwargs: Any) -> tf.Tensor:
        several = list(params) if isinstance(params, (list, tuple)) else [params]
        names = [p.logical_name for p in several if isinstance(p, RowShardedTable)]
        if len(several) > 1 and names and partition_strategy != "mod":
            raise ValueError(
                f"tables {', '.join(names)} are sharded: a list of sharded tables is looked up with "
                f"partition_strategy='mod', got {partition_strategy!r}"
            )
        return lookup(params, ids, partition_strategy, *args, **kwargs)

    return wrapped


def _would_be_sharded(rules: ShardingRules | None, name: str, kwargs: dict[str, Any]) -> bool:
    if rules is None:
        return False
    shape = kwargs.get("shape")
    if shape is None:
        shape = getattr(kwargs.get("initializer"), "shape", None)
    return rules.apply_to(name, kwargs.get("trainable"), kwargs.get("dtype"), tf.TensorShape(shape))
