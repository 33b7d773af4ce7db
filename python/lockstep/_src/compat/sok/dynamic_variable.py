"""SOK's variable that grows with its keys, on this library's dynamic tables."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from lockstep._src.collectives.slices import summed_by_row
from lockstep._src.compat.sok import job
from lockstep._src.compat.sok.variables import target_of
from lockstep._src.engine import library
from lockstep._src.engine.context import context
from lockstep._src.tables import dynamic
from lockstep._src.tables.dynamic import lookups, modes, tensorflow1_adapter
from lockstep._src.tables.sharded import initial_values
from lockstep._src.tables.sharded.lookup_steps import DistinctRows

_numbers = itertools.count()
_BACKENDS = ("hbm", "hybrid")
# HierarchicalKV's default of both capacities.
_CAPACITY = 64 << 20
_STRATEGIES = {"kLru": dynamic.CacheStrategy.LRU, "kLfu": dynamic.CacheStrategy.LFU}
# Options of HierarchicalKV that are about the memory and the kernels of a GPU; they never change results.
_OF_GPUS = ("max_hbm_for_vectors", "max_bucket_size", "max_load_factor", "block_size", "device_id", "io_by_cpu")
_OF_HYBRID = ("init_capacity", "max_capacity", "evict_strategy", "filter_ratio")


class DynamicVariable(dynamic.DynamicVariable):
    """A table of embeddings by key; see `sparse_operation_kit.DynamicVariable`."""

    __module__ = "sparse_operation_kit"

    sums_gradients = True
    _graph_element: tf.Tensor | None
    gradients_by = "key"

    def __init__(
        self,
        dimension: int,
        initializer: Any = None,
        var_type: str | None = None,
        name: str | None = None,
        constraint: Any = None,
        trainable: bool = True,
        key_type: Any = None,
        dtype: Any = None,
        mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        name = name or f"sok_dynamic_Variable_{next(_numbers)}"
        var_type = "hybrid" if var_type is None else var_type
        key_type = tf.int64 if key_type is None else tf.as_dtype(key_type)
        if var_type not in _BACKENDS:
            raise ValueError(f"variable '{name}': var_type is {var_type!r}, wanted 'hbm' or 'hybrid'")
        if key_type not in (tf.int32, tf.int64):
            raise TypeError(f"variable '{name}': key_type is {key_type.name}, wanted int32 or int64")
        if var_type == "hybrid" and key_type != tf.int64:
            raise NotImplementedError("only key_type tf.int64 is supported in HKV backend")
        if constraint is not None:
            raise NotImplementedError(f"variable '{name}': got a constraint, wanted None: rows are updated one by one")
        self._target = target_of(mode)
        self._mode, self._backend, self._config, self._start = mode, var_type, kwargs, initializer
        self._static_handle: tf.Tensor | None = None
        self._indices: Any = None
        super().__init__(
            name,
            dimension,
            key_type,
            tf.float32 if dtype is None else dtype,
            initializer=_initializer(name, initializer),
            trainable=trainable,
            option=self._adjusted(_option(name, var_type, self._target, kwargs)),
        )
        # SOK's own reads of a variable are of this rank's keys.
        self._lookups = self._lookups_made(in_job=False)
        self._of_job = self._lookups_made(in_job=job.is_shared())
        self._filtering: lookups.Lookups | None = None
        if var_type == "hybrid":
            filtering = functools.partial(_FilteringLookups, ratio=kwargs.get("filter_ratio", 1.0))
            self._filtering = self._lookups_made(filtering, in_job=job.is_shared())
        self._table_handle = self.handle
        tensorflow1_adapter.register(self)

    def _adjusted(self, option: dynamic.EmbeddingVariableOption) -> dynamic.EmbeddingVariableOption:
        """Returns the engine's options for this kind of variable."""
        return option

    def _lookups_made(self, make: Callable[..., lookups.Lookups] = lookups.Lookups, *, in_job: bool) -> lookups.Lookups:
        """Returns lookups in this rank's table, or in the tables of all ranks; `make` is their class."""
        attributes = (self.handle, self.logical_name, self.key_type, self._attributes)
        return make(*attributes, self.sums_gradients, self.gradients_by, in_job)

    def __repr__(self) -> str:
        return f"<sok.DynamicVariable '{self.logical_name}' shape={self.shape} dtype={self.dtype.name}>"

    @property
    def size(self) -> tf.Tensor:
        """The number of this rank's keys and the dimension: [2] int64."""
        return self.get_dynamic_shape()

    @property
    def indices(self) -> Any:
        """The keys of the rows in static mode; None in dynamic mode."""
        return self._indices

    @property
    def dimension(self) -> int:
        """The dimension D of the rows."""
        return self.dim

    @property
    def key_type(self) -> tf.DType:
        """The type of the keys."""
        return self.key_dtype

    @property
    def handle_dtype(self) -> tf.DType:
        """The type of the rows."""
        return self.dtype

    @property
    def backend_type(self) -> str:
        """'hbm' or 'hybrid', the argument `var_type`."""
        return self._backend

    @property
    def config_dict(self) -> dict[str, Any]:
        """The options of the backend."""
        return self._config

    @property
    def mode(self) -> str | None:
        """The argument `mode`."""
        return self._mode

    @property
    def target_gpu(self) -> int:
        """The rank that holds the table; -1 if it is on all ranks."""
        return -1 if self._target is None else self._target

    @property
    def num_gpus(self) -> int:
        """The number of ranks."""
        return job.num_ranks()

    @property
    def initializer_str(self) -> Any:
        """The argument `initializer`."""
        return "" if self._start is None else self._start

    def key_map(self, indices: Any) -> Any:
        """Returns the keys under which a rank finds rows, which are the keys."""
        return indices

    # Lookups.

    def _checked_keys(self, keys: Any) -> tf.Tensor:
        keys = super()._checked_keys(keys)
        if self.key_type != tf.int32 or keys.dtype == tf.int32:
            return keys
        narrow = tf.cast(keys, tf.int32)
        is_wide = tf.not_equal(tf.cast(narrow, tf.int64), keys)
        message = f"variable '{self.logical_name}': keys are int32, got {{}}"
        check = tf.debugging.Assert(
            tf.logical_not(tf.reduce_any(is_wide)), [tf.strings.format(message, [tf.boolean_mask(keys, is_wide)])]
        )
        with tf.control_dependencies([] if check is None else [check]):
            return tf.identity(narrow)

    def _begin_lookup(self) -> bool:
        # Lookups of a variable that is not trainable add keys as well.
        return super()._begin_lookup() or (not self.trainable and modes.is_training())

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Returns rows of this rank by key, and adds keys that are new; in static mode, rows by number.

        Args:
          indices: integers of any shape.
          name: the name of the operation.

        Returns:
          [indices..., D].
        """
        if self.is_static():
            return resource_variable_ops.BaseResourceVariable.sparse_read(self, indices, name)
        return super().sparse_read(indices, name)

    def distinct_rows_of_job(self, keys: Any, filtering: bool, problem: tf.Tensor | None = None) -> DistinctRows:
        """Returns the row of each distinct key from its owner, float32; all ranks call it together.

        Args:
          keys: [N], integers.
          filtering: whether a key that is new is only added with the probability `filter_ratio`, and else has a row of
            zeros.
          problem: see `lookup_steps.route`.
        """
        chosen = self._filtering if filtering else self._of_job
        if chosen is None:
            raise NotImplementedError(
                f"variable '{self.logical_name}': use_low_frequency_filter wants var_type='hybrid', got 'hbm'"
            )
        return chosen.distinct_rows(self._checked_keys(keys), self._begin_lookup(), problem)

    def read_and_evict(self, indices: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Reads rows of this rank, and evicts keys beyond `max_capacity`; see `sparse_read_and_evict`."""
        rows = self.sparse_read(indices)
        with tf.control_dependencies([rows]):
            keys, values = self.evict(keeps_last_lookup_alone=True)
        return rows, tf.cast(keys, self.key_dtype), tf.cast(values, self.dtype)

    def _as_graph_element(self) -> tf.Tensor:
        """Returns what `session.run(variable)` fetches: this rank's rows, as `sok.export` gives them."""
        if self._graph_element is None:
            with self.graph.as_default(), tf.control_dependencies(None):
                self._graph_element = self.export().values
        return self._graph_element

    # Two modes: an optimizer of variables works on a static buffer of some rows.

    @property
    def is_dynamic(self) -> bool:  # type: ignore[override]
        """Whether optimizers have to treat it as a table: not in static mode."""
        return self._static_handle is None or self._handle is not self._static_handle

    def is_static(self) -> bool:
        """Returns whether it is in static mode, between `to_static` and `to_dynamic`."""
        return not self.is_dynamic

    def to_static(self, indices: Any) -> Any:
        """Makes it an ordinary variable [N, D] of the rows of `indices`, [N] distinct keys of this rank.

        Raises:
          RuntimeError: it is in static mode.
        """
        if self.is_static():
            raise RuntimeError("to_static() must be called in dynamic mode.")
        rows = self.sparse_read(indices)
        if self._static_handle is None:
            with tf.init_scope():
                self._buffer = resource_variable_ops.ResourceVariable(
                    tf.zeros([1, self.dim], self.dtype),
                    shape=tf.TensorShape([None, self.dim]),
                    trainable=False,
                    name=f"{self.logical_name}/Static",
                )
            self._static_handle = self._buffer.handle
        self._indices, self._handle = indices, self._static_handle
        return self.assign(rows)

    def to_dynamic(self) -> Any:
        """Writes the rows of static mode back.

        Raises:
          RuntimeError: it is in dynamic mode.
        """
        if not self.is_static():
            raise RuntimeError("to_dynamic() must be called in static mode.")
        rows = self.read_value()
        indices, self._indices, self._handle = self._indices, None, self._table_handle
        return self.scatter_update(tf.IndexedSlices(rows, indices))

    # Changes of rows.

    def scatter_add(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Adds to the rows of this rank's keys `sparse_delta.indices`; new keys are added first.

        Raises:
          TypeError: the argument is not tf.IndexedSlices.
        """
        if self.is_static():
            return resource_variable_ops.BaseResourceVariable.scatter_add(self, sparse_delta, use_locking, name)
        return self._scatter(sparse_delta, lambda rows, values: rows + values)

    def scatter_sub(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Subtracts from rows; see `scatter_add`."""
        if self.is_static():
            return resource_variable_ops.BaseResourceVariable.scatter_sub(self, sparse_delta, use_locking, name)
        return self._scatter(sparse_delta, lambda rows, values: rows - values)

    def scatter_update(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Sets rows; of several values for a key the last one counts; see `scatter_add`."""
        if self.is_static():
            return resource_variable_ops.BaseResourceVariable.scatter_update(self, sparse_delta, use_locking, name)
        return self._scatter(sparse_delta, None)

    def _scatter(self, delta: Any, change: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None) -> Any:
        """Changes rows by key; `change` makes new rows from the old ones and sums; None: the last values are set."""
        if not isinstance(delta, tf.IndexedSlices):
            raise TypeError(f"sparse_delta is not IndexedSlices: {delta}")
        keys = tf.reshape(tf.cast(self._checked_keys(delta.indices), tf.int64), [-1])
        values = tf.reshape(tf.cast(delta.values, tf.float32), [-1, self.dim])
        if change is None:
            keys, places = tf.unique(keys)
            last = tf.math.unsorted_segment_max(tf.range(tf.size(places)), places, tf.size(keys))
            values = tf.gather(values, last)
        else:
            summed = summed_by_row(tf.IndexedSlices(values, keys))
            keys, values = summed.indices, summed.values
        handle, weights = self._table_handle, tf.constant(0.0)
        rows, numbers = library.ops.lockstep_dynamic_table_resolve(handle, keys, tf.zeros([0], tf.int64))
        written = library.ops.lockstep_dynamic_table_write_rows(
            handle, numbers, values if change is None else change(rows, values), weights
        )
        return written or self

    def __deepcopy__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("__deepcopy__() is not supported.")

    def __reduce__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("__reduce__() is not supported.")


# Methods of an ordinary variable, which exist only in static mode.
_IN_STATIC_MODE = (
    "value",
    "read_value",
    "read_value_no_copy",
    "numpy",
    "_dense_var_to_tensor",
    "_read_variable_op",
    "assign",
    "assign_add",
    "assign_sub",
    "gather_nd",
    "batch_scatter_update",
    "_strided_slice_assign",
    *(f"scatter_{how}" for how in ("max", "min", "mul", "div")),
    *(f"scatter_nd_{how}" for how in ("add", "sub", "update", "max", "min")),
)


def _in_static_mode(name: str) -> Callable[..., Any]:
    static = getattr(resource_variable_ops.BaseResourceVariable, name)

    @functools.wraps(static)
    def method(self: DynamicVariable, *args: Any, **kwargs: Any) -> Any:
        if self.is_static():
            return static(self, *args, **kwargs)
        return getattr(super(DynamicVariable, self), name)(*args, **kwargs)

    return method


for _name in _IN_STATIC_MODE:
    setattr(DynamicVariable, _name, _in_static_mode(_name))


class _FilteringLookups(lookups.Lookups):
    """Lookups that leave out some of the keys that are new.

    Whether a key is added depends on the seed, the table, the key and the number of the lookup. So it does not depend
    on the number of workers or the order of keys, and a key that comes often is added at some time.

    Args:
      *arguments: as for `lookups.Lookups`.
      ratio: the probability with which a new key is added.
    """

    def __init__(self, *arguments: Any, ratio: float) -> None:
        super().__init__(*arguments)
        self._ratio, self._seed = ratio, initial_values.name_seed(self._name)

    def _resolve(self, keys: tf.Tensor, times: tf.Tensor | None, *, is_counted: bool) -> tf.Tensor:
        known = library.ops.lockstep_dynamic_table_find(self._handle, keys) >= 0
        kept = known | (self._numbers(keys) < self._ratio)
        times = None if times is None else tf.boolean_mask(times, kept)
        rows = super()._resolve(tf.boolean_mask(keys, kept), times, is_counted=is_counted)
        # The other keys read the row of zeros behind them.
        rows = tf.pad(rows, [[0, 1], [0, 0]])
        return tf.gather(rows, tf.where(kept, tf.cumsum(tf.cast(kept, tf.int32)) - 1, tf.shape(rows)[0] - 1))

    def _numbers(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns a number from [0, 1) for each key, in each lookup another one: splitmix64 of the key."""
        # All ranks have the same sequence of numbers of lookups.
        lookup = tf.random.uniform([], maxval=2**62, dtype=tf.int64, seed=self._seed)
        mixed = tf.bitcast(tf.bitwise.bitwise_xor(tf.cast(keys, tf.int64), lookup), tf.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            shifted = tf.bitwise.right_shift(mixed, tf.constant(shift, tf.uint64))
            mixed = tf.bitwise.bitwise_xor(mixed, shifted) * tf.constant(factor, tf.uint64)
        return tf.cast(tf.bitwise.right_shift(mixed, tf.constant(40, tf.uint64)), tf.float32) / 2.0**24


def _initializer(name: str, initializer: Any) -> Any:
    """Returns the initializer that one of SOK's texts stands for; other initializers unchanged."""
    if initializer is None:
        initializer = ""
    if not isinstance(initializer, str):
        return initializer
    if initializer in ("", "random", "normal"):
        return tf.random_normal_initializer(0.0, 1.0)
    if initializer == "uniform":
        return tf.random_uniform_initializer(0.0, 1.0)
    try:
        return {"ones": 1.0, "zeros": 0.0}.get(initializer) if initializer in ("ones", "zeros") else float(initializer)
    except ValueError:
        raise ValueError(
            f"variable '{name}': Unrecognized initializer {{{initializer}}}; wanted 'random', 'normal', 'uniform', "
            "'ones', 'zeros', a number as text, or an initializer of TensorFlow or Keras"
        ) from None


def _option(name: str, var_type: str, target: int | None, given: Mapping[str, Any]) -> dynamic.EmbeddingVariableOption:
    """Returns the engine's options for the options of SOK's backend.

    Raises:
      TypeError: an option does not exist.
      ValueError: an option has a wrong value.
      NotImplementedError: the strategy of eviction is not implemented.
    """
    if unknown := sorted(given.keys() - {*_OF_GPUS, *_OF_HYBRID}):
        raise TypeError(
            f"variable '{name}': DynamicVariable has no option {unknown[0]!r}; wanted one of "
            f"{', '.join(_OF_HYBRID + _OF_GPUS)}"
        )
    without_effect = [option for option in given if option in _OF_GPUS or var_type == "hbm"]
    if without_effect:
        reason = "for GPUs" if var_type == "hybrid" else "only for var_type='hybrid' or for GPUs"
        warnings.warn(
            f"variable '{name}': these options have no effect: {', '.join(without_effect)} ({reason})", stacklevel=4
        )
    placement = dynamic.KeyPlacement("remainder" if target is None else target)
    if var_type == "hbm":
        return dynamic.EmbeddingVariableOption(placement=placement)
    capacity = _number(name, given, "max_capacity", _CAPACITY)
    first = _number(name, given, "init_capacity", 0)
    if first > capacity:
        raise ValueError(
            f"variable '{name}': init_capacity is {first}, wanted at most max_capacity, which is {capacity}"
        )
    ratio = given.get("filter_ratio", 1.0)
    if not 0 <= ratio <= 1:
        raise ValueError(f"variable '{name}': filter_ratio is {ratio}, wanted a probability, from 0 to 1")
    strategy = given.get("evict_strategy", "kLru")
    if strategy == "kCustomized":
        raise NotImplementedError(
            f"variable '{name}': evict_strategy='kCustomized' is not implemented: programs cannot set scores of keys; "
            f"wanted one of {', '.join(_STRATEGIES)}"
        )
    if strategy not in _STRATEGIES:
        raise ValueError(
            f"variable '{name}': Unrecognized evict_strategy {{{strategy}}}, wanted one of {', '.join(_STRATEGIES)}"
        )
    return dynamic.EmbeddingVariableOption(
        evict_option=dynamic.BudgetEvict(max_keys=capacity, cache_strategy=_STRATEGIES[strategy]),
        placement=placement,
        record_seconds=True,
        # SOK's capacity counts the keys of one rank.
        expected_keys=first * context.world_size,
    )


def _number(name: str, given: Mapping[str, Any], option: str, default: int) -> int:
    value = given.get(option, default)
    if isinstance(value, bool) or value != int(value) or value < (1 if option in given else 0):
        raise ValueError(f"variable '{name}': {option} is {value!r}, wanted a number of keys, at least 1")
    return int(value)
