"""Tests that each option becomes the attributes that it stands for, and that a wrong one is refused by name."""

from __future__ import annotations

import pytest

from lockstep._src.tables.dynamic import table_options
from lockstep._src.tables.dynamic.table_options import (
    BudgetEvict,
    CacheStrategy,
    CBFFilter,
    CheckpointOption,
    CounterFilter,
    EmbeddingVariableOption,
    GlobalStepEvict,
    InitializerOption,
    KeyPlacement,
    L2WeightEvict,
    StorageOption,
    StorageType,
    TimeEvict,
)

DEFAULTS = {
    "default_value": 0.0,
    "record_frequency": False,
    "record_version": False,
    "record_seconds": False,
    "expected_keys": 0,
    "keys_per_call": 4096,
    "key_owner": -2,
}
LRU, LFU = CacheStrategy.LRU, CacheStrategy.LFU
STORED = StorageOption(StorageType.DRAM, storage_size=[500, 7])
# Arguments of the options, and the attributes that differ from the defaults.
ATTRIBUTES = {
    "none": ({}, {}),
    "default row": ({"init_option": InitializerOption(default_value_no_permission=-2.5)}, {"default_value": -2.5}),
    "records": (
        {"record_frequency": True, "record_version": True, "record_seconds": True},
        {"record_frequency": True, "record_version": True, "record_seconds": True},
    ),
    "keys of three workers": ({"expected_keys": 100}, {"expected_keys": 34}),
    "remainders": ({"placement": KeyPlacement("remainder")}, {"key_owner": -1}),
    "one worker": ({"placement": KeyPlacement(2)}, {"key_owner": 2}),
    "keys in a step": ({"evict_keys_per_step": 5}, {"keys_per_call": 5}),
    "steps": ({"evict_option": GlobalStepEvict(8)}, {"steps_to_live": [8]}),
    "no steps": ({"evict_option": GlobalStepEvict()}, {"steps_to_live": []}),
    "0 steps": ({"evict_option": GlobalStepEvict(0)}, {"steps_to_live": []}),
    "norm": ({"evict_option": L2WeightEvict(0.5)}, {"l2_threshold": [0.5]}),
    "no norm": ({"evict_option": L2WeightEvict()}, {"l2_threshold": []}),
    "seconds": ({"evict_option": TimeEvict(0)}, {"seconds_to_live": [0]}),
    "budget": ({"evict_option": BudgetEvict(9)}, {"max_keys": [9], "max_bytes": [], "order": "lru"}),
    "budget of bytes": (
        {"evict_option": BudgetEvict(max_bytes=0, cache_strategy=LFU)},
        {"max_keys": [], "max_bytes": [0], "order": "lfu"},
    ),
    "two kinds": (
        {"evict_option": [GlobalStepEvict(8), TimeEvict(3)]},
        {"steps_to_live": [8], "seconds_to_live": [3]},
    ),
    "storage": ({"storage_option": STORED}, {"max_keys": [], "max_bytes": [500], "order": "lfu"}),
    "storage and steps": (
        {"storage_option": STORED, "evict_option": GlobalStepEvict(8)},
        {"max_keys": [], "max_bytes": [500], "order": "lfu", "steps_to_live": [8]},
    ),
    "counter": ({"filter_option": CounterFilter(4)}, {"min_frequency": 4}),
    "Bloom filter that counts exactly": ({"filter_option": CBFFilter(4)}, {"min_frequency": 4}),
    "Bloom filter": (
        {"filter_option": CBFFilter(4, 1000, 0.01)},
        {"min_frequency": 4, "bloom_keys": [1000], "bloom_false_positives": [0.01]},
    ),
    "default checkpoint": ({"ckpt": CheckpointOption()}, {}),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_options_are_attributes_of_the_table(name):
    options, expected = ATTRIBUTES[name]
    assert table_options.attributes(EmbeddingVariableOption(**options), workers=3) == {**DEFAULTS, **expected}


def test_an_option_of_a_derived_class_is_that_of_its_base():
    class Ours(GlobalStepEvict):
        pass

    option = EmbeddingVariableOption(evict_option=Ours(8))
    assert table_options.attributes(option, workers=1)["steps_to_live"] == [8]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: InitializerOption(default_value_dim=0), ValueError, "default_value_dim is 0, wanted more than 0"),
        (lambda: KeyPlacement(-1), ValueError, 'owner is -1, wanted "hash" or "remainder" or a rank'),
        (lambda: KeyPlacement("rank"), ValueError, "owner is 'rank', wanted"),
        (lambda: KeyPlacement(True), ValueError, "owner is True, wanted"),
        (lambda: EmbeddingVariableOption(placement=1), TypeError, "placement is 1, wanted KeyPlacement"),
        (lambda: GlobalStepEvict(-1), ValueError, "steps_to_live is -1, wanted 0 or more"),
        (lambda: L2WeightEvict(0.0), ValueError, "l2_weight_threshold is 0.0, wanted more than 0"),
        (lambda: L2WeightEvict(-0.5), ValueError, "l2_weight_threshold is -0.5, wanted more than 0"),
        (lambda: TimeEvict(-1), ValueError, "seconds_to_live is -1, wanted 0 or more"),
        (lambda: BudgetEvict(), ValueError, "BudgetEvict: wanted max_keys or max_bytes"),
        (lambda: BudgetEvict(max_keys=-1), ValueError, "max_keys is -1, wanted 0 or more"),
        (lambda: BudgetEvict(max_bytes=-1), ValueError, "max_bytes is -1, wanted 0 or more"),
        (lambda: CounterFilter(-1), ValueError, "filter_freq is -1, wanted 0 or more"),
        (lambda: CBFFilter(-1), ValueError, "filter_freq is -1, wanted 0 or more"),
        (lambda: CBFFilter(3, -5), ValueError, "max_element_size is -5, wanted 0 or more"),
        (lambda: CBFFilter(3, max_element_size=5), ValueError, "set together, got 5 and -1.0"),
        (lambda: CBFFilter(3, false_positive_probability=0.1), ValueError, "set together, got 0 and 0.1"),
        (lambda: StorageOption(StorageType.SSDHASH), NotImplementedError, "SSDHASH.*wanted StorageType.DRAM"),
        (
            lambda: StorageOption(storage_path="/data"),
            NotImplementedError,
            "/data, wanted StorageType.DRAM and no path",
        ),
        (lambda: StorageOption(storage_size=[]), ValueError, r"storage_size is \[\], wanted a list"),
        (lambda: StorageOption(storage_size=[-5]), ValueError, r"storage_size is \[-5\], wanted a list"),
        (lambda: StorageOption(storage_size=5), ValueError, "storage_size is 5, wanted a list"),
        (lambda: CheckpointOption("model.ckpt-3"), NotImplementedError, "model.ckpt-3.*wanted its defaults"),
        (lambda: EmbeddingVariableOption(ckpt="model.ckpt-3"), TypeError, "ckpt is 'model.ckpt-3', wanted Checkpoint"),
        (lambda: EmbeddingVariableOption(init_option=0.5), TypeError, "init_option is 0.5, wanted InitializerOption"),
        (lambda: EmbeddingVariableOption(storage_option=None), TypeError, "storage_option is None, wanted Storage"),
        (lambda: EmbeddingVariableOption(expected_keys=-1), ValueError, "expected_keys is -1, wanted 0 or more"),
        (lambda: EmbeddingVariableOption(evict_keys_per_step=0), ValueError, "evict_keys_per_step is 0, wanted more"),
    ],
)
def test_a_wrong_value_is_refused_when_the_option_is_made(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"filter_option": 3}, TypeError, "filter_option is 3, wanted CounterFilter or CBFFilter"),
        ({"evict_option": 3}, TypeError, "evict_option is 3, wanted GlobalStepEvict or L2WeightEvict or"),
        ({"evict_option": [TimeEvict(1), CounterFilter(1)]}, TypeError, "evict_option is CounterFilter"),
        (
            {"evict_option": [GlobalStepEvict(1), GlobalStepEvict(2)]},
            ValueError,
            "evict_option: two of GlobalStepEvict, wanted at most one of a kind",
        ),
        (
            {"evict_option": BudgetEvict(5), "storage_option": STORED},
            ValueError,
            "evict_option: two of BudgetEvict, wanted at most one of a kind",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused_when_the_table_is_made(options, error, message):
    with pytest.raises(error, match=message):
        table_options.attributes(EmbeddingVariableOption(**options), workers=1)
