"""The scope in which variables become sharded tables, and the rules that say which."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from lockstep._src.context import context
from lockstep._src.sharding import initial, shard
from lockstep._src.sharding.table import RowShardedTable

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


@contextlib.contextmanager
def sharding_scope(rules: ShardingRules | None = None) -> Iterator[None]:
    """Makes variables that are created inside, in whatever way, sharded tables where the rules say so.

    A partitioner does nothing to a sharded table: it stays one variable, split by rows over the workers.

    Args:
      rules: None for those of the context's options at the time of creation.
    """

    def current_rules() -> ShardingRules | None:
        return rules or ShardingRules.from_options()

    with (
        tf.variable_creator_scope(_creator(current_rules)),
        tf.compat.v1.variable_scope(
            tf.compat.v1.get_variable_scope(), custom_getter=_getter(current_rules), auxiliary_name_scope=False
        ),
    ):
        yield


def _creator(current_rules: Callable[[], ShardingRules | None]) -> Callable[..., tf.Variable]:
    def create(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        rules = current_rules()
        if rules is None or kwargs.get("trainable") is False or kwargs.get("variable_def") is not None:
            return next_creator(**kwargs)
        initial_value = kwargs.get("initial_value")
        if initial_value is None:
            return next_creator(**kwargs)
        shape = initial.shape_of(initial_value, kwargs.get("shape"))
        dtype = kwargs.get("dtype") or getattr(initial_value, "dtype", None)
        if not rules.apply_to(kwargs.get("name"), kwargs.get("trainable"), dtype, shape):
            return next_creator(**kwargs)
        if getattr(initial_value, "__module__", "").startswith("keras.src."):
            # Its optimizers and its lookup believe in the shape that the layer asked for.
            raise NotImplementedError(
                f"variable '{kwargs.get('name')}' {shape}: layers of Keras 3 cannot hold sharded tables. Make the "
                "layer outside of the sharding scope, which replicates it; or use tf.nn.embedding_lookup on a "
                "tf.Variable; or set TF_USE_LEGACY_KERAS=1 for Keras 2"
            )
        return RowShardedTable(**{**kwargs, "shape": shape})

    return create


def _getter(current_rules: Callable[[], ShardingRules | None]) -> Callable[..., tf.Variable]:
    """A custom getter for `tf.compat.v1.get_variable`, which does two things before any creator is asked.

    It compares shapes where it reuses a variable, and splits one where there is a partitioner.
    """

    def get(getter: Callable[..., tf.Variable], name: str, **kwargs: Any) -> tf.Variable:
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
        return getter(name, **kwargs)

    return get


def _would_be_sharded(rules: ShardingRules | None, name: str, kwargs: dict[str, Any]) -> bool:
    if rules is None:
        return False
    shape = kwargs.get("shape")
    if shape is None:
        shape = getattr(kwargs.get("initializer"), "shape", None)
    return rules.apply_to(name, kwargs.get("trainable"), kwargs.get("dtype"), tf.TensorShape(shape))
