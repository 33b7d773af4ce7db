"""Options of dynamic tables: DeepRec's classes with their names, arguments and defaults, and some more options.

DeepRec evicts keys when it saves a checkpoint. Here keys are evicted during training (core/embedding/eviction.h).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

_GIBIBYTE = 1 << 30


class StorageType(enum.Enum):
    """The storage of rows, by DeepRec's names. Here all tables are in memory: `DRAM`."""

    DRAM = "dram"
    PMEM_MEMKIND = "pmem_memkind"
    PMEM_LIBPMEM = "pmem_libpmem"
    LEVELDB = "leveldb"
    SSDHASH = "ssdhash"
    HBM = "hbm"
    DRAM_PMEM = "dram_pmem"
    DRAM_LEVELDB = "dram_leveldb"
    DRAM_SSDHASH = "dram_ssdhash"
    HBM_DRAM = "hbm_dram"
    DRAM_PMEM_SSDHASH = "dram_pmem_ssdhash"
    HBM_DRAM_SSDHASH = "hbm_dram_ssdhash"


class CacheStrategy(enum.Enum):
    """The order in which keys are evicted from a full table: LRU: the longest unseen first; LFU: the least frequent."""

    LRU = "lru"
    LFU = "lfu"


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _check_least(least: int, **values: int) -> None:
    for name, value in values.items():
        wanted = "more than 0" if least == 1 else f"{least} or more"
        _check(value >= least, f"{name} is {value}, wanted {wanted}")


def _check_type(name: str, value: Any, *types: type) -> None:
    if not isinstance(value, types):
        raise TypeError(f"{name} is {value!r}, wanted {' or '.join(cls.__name__ for cls in types)}")


@dataclasses.dataclass(frozen=True)
class InitializerOption:
    """The values of rows before their first update.

    Args:
      initializer: None for a normal distribution with a standard deviation of 1, truncated at two of them.
      default_value_dim: only for initializers that the engine does not know. So many rows are drawn once, and a new key
        begins with row `key mod default_value_dim`. With constant, uniform, normal and truncated normal initializers
        every key has a row of its own.
      default_value_no_permission: each element of the row that keys without a row read. In training, these are keys
        that are not admitted; in evaluation, prediction and exports also unseen and evicted keys. A table that admits
        all keys and begins rows with a constant uses this constant instead.
    """

    initializer: Any = None
    default_value_dim: int = 4096
    default_value_no_permission: float = 0.0

    def __post_init__(self) -> None:
        _check_least(1, default_value_dim=self.default_value_dim)


@dataclasses.dataclass(frozen=True)
class GlobalStepEvict:
    """Evicts keys that were last seen more than `steps_to_live` steps ago; None or 0: no key."""

    steps_to_live: int | None = None

    def __post_init__(self) -> None:
        _check_least(0, steps_to_live=self.steps_to_live or 0)


@dataclasses.dataclass(frozen=True)
class L2WeightEvict:
    """Evicts keys whose row has a norm below `l2_weight_threshold`; -1: no key.

    A key stays in the step in which it is looked up. It can be evicted in any other step, so the first updates of a row
    must raise its norm above the threshold.
    """

    l2_weight_threshold: float = -1.0

    def __post_init__(self) -> None:
        threshold = self.l2_weight_threshold
        _check(threshold == -1.0 or threshold > 0, f"l2_weight_threshold is {threshold}, wanted more than 0")


@dataclasses.dataclass(frozen=True)
class TimeEvict:
    """Evicts keys that were last seen more than `seconds_to_live` seconds ago, by the clock."""

    seconds_to_live: int

    def __post_init__(self) -> None:
        _check_least(0, seconds_to_live=self.seconds_to_live)


@dataclasses.dataclass(frozen=True)
class BudgetEvict:
    """Evicts keys if a worker has more than `max_keys`, or if its rows with their slots need more than `max_bytes`.

    The keys of a step stay until the end of the next step, so a table may exceed its budget by the keys of a batch.
    Memory of evicted keys is used again, but not returned to the system.

    With LFU, frequencies age: after each eviction of as many keys as the table may hold, all frequencies are halved. So
    keys that were frequent long ago are evicted in the end, and new keys can become frequent. `get_frequency` returns
    the aged frequencies.

    Args:
      max_keys: the largest number of keys on a worker; None for no limit.
      max_bytes: the largest size of the rows on a worker in bytes; None for no limit.
      cache_strategy: which keys are evicted first.
    """

    max_keys: int | None = None
    max_bytes: int | None = None
    cache_strategy: CacheStrategy = CacheStrategy.LRU

    def __post_init__(self) -> None:
        _check(self.max_keys is not None or self.max_bytes is not None, "BudgetEvict: wanted max_keys or max_bytes")
        _check_least(0, max_keys=self.max_keys or 0, max_bytes=self.max_bytes or 0)


EvictOption = GlobalStepEvict | L2WeightEvict | TimeEvict | BudgetEvict


@dataclasses.dataclass(frozen=True)
class CounterFilter:
    """Admits keys that have been seen `filter_freq` times, counted exactly; 0: all keys."""

    filter_freq: int = 0

    def __post_init__(self) -> None:
        _check_least(0, filter_freq=self.filter_freq)


@dataclasses.dataclass(frozen=True)
class CBFFilter:
    """Admits keys that a counting Bloom filter has seen `filter_freq` times; it admits some keys early.

    Args:
      filter_freq: the number of lookups until a key is admitted; 0: all keys are admitted.
      max_element_size: the number of keys for which the filter is made, with `false_positive_probability`. Without
        both, keys are counted exactly.
      false_positive_probability: the share of keys that are admitted early when the filter has so many keys.
      counter_type: not used: counters have as many bits as they need.
    """

    filter_freq: int = 0
    max_element_size: int = 0
    false_positive_probability: float = -1.0
    counter_type: Any = tf.uint64

    def __post_init__(self) -> None:
        _check_least(0, filter_freq=self.filter_freq, max_element_size=self.max_element_size)
        both = (self.max_element_size > 0) == (self.false_positive_probability > 0.0)
        _check(
            both,
            "CBFFilter: max_element_size and false_positive_probability are set together, got "
            f"{self.max_element_size} and {self.false_positive_probability}",
        )


@dataclasses.dataclass(frozen=True)
class StorageOption:
    """The storage of rows. Only memory is supported; other storage raises NotImplementedError.

    Args:
      storage_type: None or `StorageType.DRAM`.
      storage_path: must be None; it is the path of tiers that are files.
      storage_size: bytes of each tier. If it is not the default, the first one limits the table, as in `BudgetEvict`.
      cache_strategy: which keys are evicted first then.
    """

    storage_type: StorageType | None = None
    storage_path: str | None = None
    storage_size: Sequence[int] = (_GIBIBYTE,)
    cache_strategy: CacheStrategy = CacheStrategy.LFU

    def __post_init__(self) -> None:
        if self.storage_type not in (None, StorageType.DRAM) or self.storage_path is not None:
            raise NotImplementedError(
                f"StorageOption: got {self.storage_type} at {self.storage_path}, wanted StorageType.DRAM and no path: "
                "tables are in memory"
            )
        sizes = self.storage_size
        _check(
            isinstance(sizes, (list, tuple)) and len(sizes) > 0 and min(sizes) >= 0,
            f"storage_size is {sizes!r}, wanted a list with the bytes of each tier",
        )

    @property
    def budget(self) -> BudgetEvict | None:
        """The limit of the table's size; None if there is none."""
        if list(self.storage_size) == [_GIBIBYTE]:
            return None
        return BudgetEvict(max_bytes=self.storage_size[0], cache_strategy=self.cache_strategy)


@dataclasses.dataclass(frozen=True)
class CheckpointOption:
    """The source of a table's first values. It is not supported: only the defaults are accepted."""

    ckpt_to_load_from: str | None = None
    tensor_name_in_ckpt: str | None = None
    always_load_from_specific_ckpt: bool = False
    init_data_source: str | None = None

    def __post_init__(self) -> None:
        if any(dataclasses.astuple(self)):
            raise NotImplementedError(
                f"got {self}, wanted its defaults: a table begins with its initializer, or with a restored checkpoint"
            )


@dataclasses.dataclass(frozen=True)
class KeyPlacement:
    """The workers of a job that own a table's keys. Checkpoints fit any placement.

    Args:
      owner: "hash": a hash of the key names its owner, which spreads any keys evenly; "remainder": of W workers, worker
        `key mod W` owns a key (not for string keys); a rank: this worker owns all keys.
    """

    owner: str | int = "hash"

    def __post_init__(self) -> None:
        is_rank = isinstance(self.owner, int) and not isinstance(self.owner, bool) and self.owner >= 0
        wanted = " or ".join(f'"{name}"' for name in _KEY_OWNERS)
        _check(is_rank or self.owner in _KEY_OWNERS, f"owner is {self.owner!r}, wanted {wanted} or a rank")

    @property
    def key_owner(self) -> int:
        """The placement as a number, as operations have it in their attributes."""
        return _KEY_OWNERS[self.owner] if isinstance(self.owner, str) else self.owner


_KEY_OWNERS = {"hash": -2, "remainder": -1}


@dataclasses.dataclass(frozen=True)
class EmbeddingVariableOption:
    """The way in which a dynamic table keeps its keys.

    Args:
      ht_type: not used, as in DeepRec.
      ht_partition_num: not used, as in DeepRec.
      evict_option: which keys are evicted; one option or a list of options, each of which evicts keys.
      ckpt: must be None or the default.
      filter_option: which keys are admitted.
      storage_option: the storage of rows.
      init_option: the values of rows before their first update.
      record_frequency: whether to record how often keys are seen, for `get_frequency`, even if nothing else needs it.
      record_version: whether to record in which step keys were last seen, for `get_version`.
      expected_keys: the number of keys, on all workers together, for which the index is large enough from the start.
      evict_keys_per_step: how many keys eviction examines in a step.
      placement: the workers that own the keys.
      record_seconds: whether to record when keys were last seen, for `get_seconds`, even if no `TimeEvict` needs it.
    """

    ht_type: str = ""
    ht_partition_num: int = 1000
    evict_option: EvictOption | Sequence[EvictOption] | None = None
    ckpt: CheckpointOption | None = None
    filter_option: CounterFilter | CBFFilter | None = None
    storage_option: StorageOption = dataclasses.field(default_factory=StorageOption)
    init_option: InitializerOption = dataclasses.field(default_factory=InitializerOption)
    record_frequency: bool = False
    record_version: bool = False
    expected_keys: int = 0
    evict_keys_per_step: int = 4096
    placement: KeyPlacement = dataclasses.field(default_factory=KeyPlacement)
    record_seconds: bool = False

    def __post_init__(self) -> None:
        if self.ckpt is not None:
            _check_type("ckpt", self.ckpt, CheckpointOption)
        _check_type("storage_option", self.storage_option, StorageOption)
        _check_type("init_option", self.init_option, InitializerOption)
        _check_type("placement", self.placement, KeyPlacement)
        _check_least(0, expected_keys=self.expected_keys)
        _check_least(1, evict_keys_per_step=self.evict_keys_per_step)

    def evict_options(self) -> list[EvictOption]:
        """Returns all options by which keys are evicted."""
        given: Any = self.evict_option or ()
        options: list[EvictOption] = list(given) if isinstance(given, (list, tuple)) else [given]
        for option in options:
            _check_type("evict_option", option, *_EVICTION)
        return [*options, *([self.storage_option.budget] if self.storage_option.budget else ())]


def attributes(option: EmbeddingVariableOption, workers: int) -> dict[str, Any]:
    """Returns the options as attributes of the operation that creates a table on one of `workers` workers.

    Raises:
      TypeError: an option has the wrong type.
      ValueError: there are two options of one kind.
    """
    result: dict[str, Any] = {
        "default_value": option.init_option.default_value_no_permission,
        "record_frequency": option.record_frequency,
        "record_version": option.record_version,
        "record_seconds": option.record_seconds,
        "expected_keys": -(-option.expected_keys // workers),
        "keys_per_call": option.evict_keys_per_step,
        "key_owner": option.placement.key_owner,
        **_admission(option.filter_option),
    }
    kinds: set[type] = set()
    for evict in option.evict_options():
        kind = next(kind for kind in _EVICTION if isinstance(evict, kind))
        _check(kind not in kinds, f"evict_option: two of {kind.__name__}, wanted at most one of a kind")
        kinds.add(kind)
        result.update(_EVICTION[kind](evict))
    return result


def _admission(option: CounterFilter | CBFFilter | None) -> dict[str, Any]:
    if option is None:
        return {}
    _check_type("filter_option", option, CounterFilter, CBFFilter)
    result: dict[str, Any] = {"min_frequency": option.filter_freq}
    if isinstance(option, CBFFilter) and option.max_element_size > 0:
        result["bloom_keys"] = [option.max_element_size]
        result["bloom_false_positives"] = [option.false_positive_probability]
    return result


def _one(value: Any, wanted: bool = True) -> list[Any]:
    return [value] if value is not None and wanted else []


_EVICTION: dict[type, Callable[[Any], dict[str, Any]]] = {
    GlobalStepEvict: lambda e: {"steps_to_live": _one(e.steps_to_live, e.steps_to_live != 0)},
    L2WeightEvict: lambda e: {"l2_threshold": _one(e.l2_weight_threshold, e.l2_weight_threshold > 0)},
    TimeEvict: lambda e: {"seconds_to_live": [e.seconds_to_live]},
    BudgetEvict: lambda e: {
        "max_keys": _one(e.max_keys),
        "max_bytes": _one(e.max_bytes),
        "order": e.cache_strategy.value,
    },
}
