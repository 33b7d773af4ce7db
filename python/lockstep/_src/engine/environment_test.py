"""Tests that every environment variable of HybridBackend has its effect, or is reported as without effect."""

import logging
import os
from pathlib import Path

import pytest

from lockstep._src.data import parquet
from lockstep._src.engine.context import context
from lockstep._src.engine.environment import WITHOUT_EFFECT, warn_of_what_has_no_effect
from lockstep._src.engine.options import VARIABLES, Options

DOCUMENT = (Path(__file__).resolve().parents[4] / "docs/hybridbackend.md").read_text()

# Variable, a value that is not the default, the option that it sets, and a value that is refused.
SETTING = [
    ("HB_GRAD_NBUCKETS", "2", "grad_nbuckets", "0"),
    ("HB_GRAD_LAZY_SYNC", "1", "grad_lazy_sync", "perhaps"),
    ("HB_USE_HIERARCHICAL_EMBEDDING_LOOKUP", "0", "use_hierarchical_embedding_lookup", "2"),
    ("HB_PIPELINE_DENSE_GA_ENABLED", "true", "pipeline_dense_ga_enabled", "-"),
    ("HB_SHARDING", "1", "sharding", "perhaps"),
    ("HB_BATCH_SIZE", "512", "batch_size", "0"),
    ("HB_MODE", "eval", "mode", "predict"),
    ("HB_MODEL_DIR", "/tmp/model", "model_dir", None),
    ("HB_KEEP_CHECKPOINT_MAX", "3", "keep_checkpoint_max", "-1"),
    ("HB_KEEP_CHECKPOINT_EVERY_N_HOURS", "0.5", "keep_checkpoint_every_n_hours", "0"),
    ("HB_DATA_BATCH_COUNT", "2", "data_batch_count", "0"),
    ("HB_DATA_SYNC_DROP_REMAINDER", "false", "data_sync_drop_remainder", "perhaps"),
    ("HB_COMM_DEFAULT", None, "comm_default", "smoke signals"),  # there is only one backend, so one value
    ("HB_COMM_POOL_CAPACITY", "2", "comm_pool_capacity", "none"),
    ("HB_COMM_POOL_NAME", "own", "comm_pool_name", None),
    ("HB_COMM_WIRE_DTYPE", "float16", "comm_wire_dtype", "int8"),
    ("HB_COMM_GRADIENT_WIRE_DTYPE", "bfloat16", "comm_gradient_wire_dtype", "float64"),
]
ELSEWHERE = ["ARROW_NUM_THREADS"]
# One variable for each option, and the others that HybridBackend's documents and sources read, by common prefixes.
OF_HYBRIDBACKEND = """
HB_COMM_ DEFAULT POOL_CAPACITY WIRE_DTYPE GRADIENT_WIRE_DTYPE
HB_ SHARDING BATCH_SIZE MODE MODEL_DIR KEEP_CHECKPOINT_MAX KEEP_CHECKPOINT_EVERY_N_HOURS DATA_BATCH_COUNT COMM_POOL_NAME
HB_ DATA_SYNC_DROP_REMAINDER
HB_ GRAD_NBUCKETS GRAD_LAZY_SYNC USE_HIERARCHICAL_EMBEDDING_LOOKUP PIPELINE_DENSE_GA_ENABLED
HB_ OP_OPTIMIZATION_DISABLED OP_RELOCATION_ENABLED OP_PACKING_DISABLED OP_PACKING_NBUCKETS COLLECTIVE_PACKING_DISABLED
HB_ COLLECTIVE_PACKING_ALGORITHM OP_PREFETCH_PACKING_DISABLED TRANSFER_OPTIMIZATION_DISABLED TRANSFER_PACKING_BUCKETS
HB_OP_PARTITION_BY_ MODULO_OPTIMIZATION_DISABLED MODULO_PACKING_DISABLED
HB_OP_PARTITION_BY_ DUAL_MODULO_OPTIMIZATION_DISABLED DUAL_MODULO_PACKING_DISABLED
HB_OP_FLOORMOD_SHUFFLE_ OPTIMIZATION_DISABLED PACKING_DISABLED
HB_ MEMORY_DECAY_MILLIS MEMORY_LOGGING_ENABLED FORCE_GPU_COMPATIBLE ZERO_COPY_STRING_FOR_REBATCH_DISABLED
HB_ DATA_REBATCH_FASTPATH_DISABLED OPTIMIZED_GRAPH_PATH UNOPTIMIZED_GRAPH_PATH MIN_LOG_LEVEL RUN_BASE_PORT TEST_LOGDIR
ARROW_ NUM_THREADS FILE_BUFFER_SIZE
NCCL_ASYNC_ERROR_ HANDLING CHECKING_INTERVAL_SECS
"""
NAMES = [line.split()[0] + end for line in OF_HYBRIDBACKEND.strip().splitlines() for end in line.split()[1:]]


@pytest.mark.parametrize("name", NAMES)
def test_a_variable_has_a_meaning_or_a_documented_reason_for_none(name):
    honoured = name in [row[0] for row in SETTING] or name in ELSEWHERE
    assert honoured != (name in WITHOUT_EFFECT)
    assert f"`{name}`" in DOCUMENT


def test_the_tables_have_no_names_beyond():
    assert set(WITHOUT_EFFECT) < set(NAMES)
    assert {name for name in VARIABLES if name.startswith("HB_")} == {row[0] for row in SETTING}


@pytest.mark.parametrize(("variable", "text", "option", "refused"), SETTING)
def test_a_variable_sets_its_option_and_a_wrong_value_is_refused_by_its_name(variable, text, option, refused):
    if text is not None:
        assert getattr(Options.from_environment({variable: text}), option) != getattr(Options(), option)
    if refused is not None:
        with pytest.raises(ValueError, match=f"{variable}.*{option}"):
            Options.from_environment({variable: refused})


def test_variables_without_effect_change_no_option_and_are_named_once(caplog):
    environ = dict.fromkeys(WITHOUT_EFFECT, "1")
    assert Options.from_environment(environ) == Options()
    with caplog.at_level(logging.WARNING, logger="lockstep"):
        warn_of_what_has_no_effect(environ, VARIABLES)
        (record,) = caplog.records
    assert all(name in record.getMessage() for name in WITHOUT_EFFECT)


def test_a_variable_that_nobody_knows_is_named_with_those_that_are(caplog):
    with caplog.at_level(logging.WARNING, logger="lockstep"):
        warn_of_what_has_no_effect({"HB_GRAD_BUCKETS": "2", "HB_GRAD_NBUCKETS": "2", "HOME": "/"}, VARIABLES)
    (record,) = caplog.records
    assert "unknown environment variables: HB_GRAD_BUCKETS; known ones are" in record.getMessage()
    assert "HB_GRAD_NBUCKETS" in record.getMessage()


# Promise (hybridbackend.md): each dataset has its own number of threads; the variable is read, not written
# (HybridBackend: `ARROW_NUM_THREADS` is set for the whole process by the first dataset).
@pytest.mark.parametrize(("text", "threads"), [("3", 3), ("0", 1), ("", None)])
def test_arrows_variable_is_the_number_of_the_readers_threads(monkeypatch, text, threads):
    monkeypatch.setenv("ARROW_NUM_THREADS", text)
    of_cores = max(1, len(os.sched_getaffinity(0)) // context.local_world_size)
    assert parquet._threads_of_a_worker() == (threads or of_cores)


def test_arrows_variable_is_a_number(monkeypatch):
    monkeypatch.setenv("ARROW_NUM_THREADS", "all")
    with pytest.raises(ValueError, match="ARROW_NUM_THREADS: got 'all', wanted a number"):
        parquet._threads_of_a_worker()
