"""The rules that say which variables become sharded tables and where their rows are, and functions that create them.

TensorFlow creates a variable by calling the creators of its graph; `tf.compat.v1.get_variable` calls its variable store
before that. Both are intercepted for all graphs, because a program may make its graph inside a scope.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from lockstep._src.engine import placements
from lockstep._src.engine.context import context
from lockstep._src.engine.placements import Placements
from lockstep._src.engine.thread_value import ThreadValue
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.tables.placement import planner
from lockstep._src.tables.sharded import initial_values, shard
from lockstep._src.tables.sharded.table import RowShardedTable, unique_name

# The name of one of the parts into which a partitioner divides a variable.
_PART = re.compile(r"(^|/)part_\d+$")


@dataclasses.dataclass(frozen=True)
class ShardingRules:
    """The rules that say which variables are worth sharding. Others are replicated; the results are the same.

    A sharded table must be a trainable matrix of a floating-point type whose shape is known. The other rules are here.
    Sharding is for lookups. A variable that is multiplied as a whole would be gathered for that in each step. Therefore
    weights of dense layers are recognized by their names, and replicated.
    """

    # Tables with at most this number of rows are replicated, if the program does not say something else for them: an
    # exchange of the batch's rows costs more than it saves.
    # If a table had fewer rows than there are workers, some workers would have none.
    replicate_up_to_rows: int = 1
    # Where rows are: the option `placement`.
    placement: Placements = "rows"
    # The last components of the names of replicated variables: the names that Keras and tf.layers give to the weights
    # of dense, recurrent and convolutional layers.
    replicate_names: re.Pattern[str] = re.compile(r"(.*_)?kernel(_\d+)?")

    @classmethod
    def from_options(cls) -> ShardingRules | None:
        """Returns the rules of the context's options; None if the options say that nothing is sharded."""
        options = context.options
        # If only one worker builds a graph, no other runs it, regardless of the scopes that the program opens in it.
        if not options.sharding or options.mode == "infer" or context.is_detached:
            return None
        return cls(max(context.world_size, options.batch_size or 0), placement=options.placement)

    def is_table(self, name: str, trainable: bool | None, dtype: Any, shape: tf.TensorShape) -> bool:
        """Returns whether a variable is a table, sharded or replicated; takes the arguments of `place`."""
        return (
            # Slots of optimizers are not trainable, and have the shape of the shard already.
            trainable is not False
            and (dtype is None or tf.as_dtype(dtype).is_floating)
            and shape.rank == 2
            and shape.is_fully_defined()
            and not _PART.search(name)
            and not self.replicate_names.fullmatch(name.rsplit("/", 1)[-1])
        )

    def place(
        self, name: str | None, trainable: bool | None, dtype: Any, shape: tf.TensorShape
    ) -> planner.PlacedTable | None:
        """Returns where a table's rows are; None if the variable is not a table; it is then replicated.

        Args:
          name: the name of the variable.
          trainable: None means True.
          dtype: None if it is not known; it is then taken for a floating-point type.
          shape: the shape of the whole variable.

        Raises:
          ValueError: the option `placement` names a worker that the job has not.
        """
        name = (name or "").split(":")[0]
        if not self.is_table(name, trainable, dtype, shape):
            return None
        rows, width = shape.as_list()
        wish = placements.wish_for(name, self.placement)
        if wish.kind == "rows" and not wish.is_for_table and rows <= self.replicate_up_to_rows:
            wish = dataclasses.replace(wish, kind="replicated", number=None)
        return planner.planner().place(name, rows, width, width * tf.as_dtype(dtype or tf.float32).size, wish)


# A function that creates a variable from the arguments of `tf.Variable`, itself or by the next creator.
Creator = Callable[..., tf.Variable]


@contextlib.contextmanager
def sharding_scope(rules: ShardingRules | None = None) -> Iterator[None]:
    """Makes variables that are created inside, in any way, sharded tables if the rules apply.

    A partitioner has no effect on a sharded table: it stays one variable, split by rows over the workers.

    Args:
      rules: the rules; None for the context's options at the time of creation.
    """
    with Interception(symbols.SCOPE) as interception:
        intercept_creation(interception, lambda: rules or ShardingRules.from_options())
        yield


def intercept_creation(
    interception: Interception,
    current_rules: Callable[[], ShardingRules | None] = ShardingRules.from_options,
    replicated: Creator | None = None,
    in_functions: Creator | None = None,
) -> None:
    """Makes variables that are created during the interception sharded tables if the rules apply.

    Args:
      interception: holds the replacements.
      current_rules: called at each creation; if it returns None, nothing is sharded.
      replicated: creates the variables that are neither tables nor their slots; it is called as creators are,
        `replicated(next_creator, ...)`.
      in_functions: creates all variables while a `tf.function` is traced, in the same way. A function's own creator
        calls no other one, so neither tables nor replicated variables would be made there.
    """
    lasting = True
    makes_slot_of_table = ThreadValue(False)

    def create(next_creator: Creator, **kwargs: Any) -> tf.Variable:
        # A stack of creators that was saved during the interception may be restored after its end.
        if not lasting:
            return next_creator(**kwargs)
        if makes_slot_of_table.value:
            return next_creator(**_begun_as_a_table(kwargs))
        rules = current_rules()
        placed = None if rules is None else _place(rules, kwargs)
        if placed is not None and placed.kind != "replicated":
            variable = RowShardedTable(**kwargs, block=placed.block, first=placed.first)
        else:
            variable = next_creator(**kwargs) if replicated is None else replicated(next_creator, **kwargs)
        if placed is not None:
            placed.variables[id(variable)] = variable
        return variable

    # Priority 0 makes it the innermost creator: it gets the arguments as the program's own creators have changed them.
    entry = (0, create)
    # The last one is the outermost creator.
    guard = None if in_functions is None else (sys.maxsize, in_functions)

    def stack(original: property) -> property:
        creators_of = original.fget
        assert creators_of is not None

        def get(graph: tf.Graph) -> list[tuple[int, Creator]]:
            creators: list[tuple[int, Creator]] = creators_of(graph)
            if not lasting:
                return creators
            creators = creators if entry in creators else [entry, *creators]
            if guard is None or guard in creators or not graph.building_function:
                return creators
            return [*creators, guard]

        return property(get, original.fset)

    def end() -> None:
        nonlocal lasting
        lasting = False

    interception.on_undo(end)
    interception.replace(symbols.CREATOR_STACK, stack)
    interception.replace(symbols.GET_VARIABLE, functools.partial(_wrap_store, current_rules))
    interception.replace(symbols.CREATE_SLOT, functools.partial(_wrap_slots, makes_slot_of_table))
    interception.replace(symbols.LOOKUP, _wrap_lookup)


def _wrap_slots(
    makes_slot_of_table: ThreadValue[bool], create_slot: Callable[..., tf.Variable]
) -> Callable[..., tf.Variable]:
    """Wraps TensorFlow's creation of slots: a table's slot has the shard's shape, and differs between workers."""

    @functools.wraps(create_slot)
    def wrapped(primary: Any, *args: Any, **kwargs: Any) -> tf.Variable:
        with makes_slot_of_table.holding(shard.is_sharded(primary)):
            slot = create_slot(primary, *args, **kwargs)
        if isinstance(primary, RowShardedTable) and slot.shape[:1] == primary.shape[:1]:
            planner.note_slot(primary.logical_name, slot.shape[1:].num_elements() * slot.dtype.size)
        return slot

    return wrapped


def _begun_as_a_table(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a slot with an initial value that is computed like a table's.

    TensorFlow's initializer of a constant makes an operation that keeps all elements of the slot as long as the session
    lives. The slot's first update would then copy it.
    """
    initial_value = kwargs.get("initial_value")
    if not isinstance(initial_value, functools.partial):
        return kwargs
    shape = initial_values.shape_of(initial_value, kwargs.get("shape"))
    if not shape.rank or not shape.is_fully_defined():
        return kwargs
    name = unique_name(kwargs.get("name") or "Variable")
    return {**kwargs, "initial_value": initial_values.all_rows(initial_value, shape, kwargs.get("dtype"), name)}


def _place(rules: ShardingRules, kwargs: dict[str, Any]) -> planner.PlacedTable | None:
    """Returns where the table of these arguments is, and sets its shape in them; None if they are not for a table."""
    initial_value = kwargs.get("initial_value")
    if kwargs.get("trainable") is False or kwargs.get("variable_def") is not None or initial_value is None:
        return None
    shape = initial_values.shape_of(initial_value, kwargs.get("shape"))
    dtype = kwargs.get("dtype") or getattr(initial_value, "dtype", None)
    placed = rules.place(unique_name(kwargs.get("name") or "Variable"), kwargs.get("trainable"), dtype, shape)
    if placed is not None and placed.kind != "replicated":
        kwargs["shape"] = shape
    return placed


def _wrap_store(current_rules: Callable[[], ShardingRules | None], get_variable: Callable[..., Any]) -> Any:
    """Wraps the method behind `tf.compat.v1.get_variable`, which does two things before it calls any creator.

    It compares shapes if it reuses a variable, and splits a variable if there is a partitioner.
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
            # TensorFlow compares this shape with the shard's.
            kwargs.update(shape=shape if shape is None else table.shape, partitioner=None)
        elif kwargs.get("partitioner") is not None and _would_be_sharded(current_rules(), name, kwargs):
            kwargs["partitioner"] = None
        return get_variable(store, name, **kwargs)

    return wrapped


def _wrap_lookup(lookup: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Wraps TensorFlow's lookup in one or several tables.

    For several tables it divides the ids by their first dimensions; a sharded table reports its shard's dimension.
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
    placed = rules.place(name, kwargs.get("trainable"), kwargs.get("dtype"), tf.TensorShape(shape))
    return placed is not None and placed.kind != "replicated"
