import inspect
from typing import get_type_hints

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.options import Options, OptionValues, takes_options


def test_defaults_are_the_documented_ones():
    options = Options()
    assert options.grad_nbuckets == 1
    assert options.data_sync_drop_remainder is True
    assert options.grad_lazy_sync is False
    assert options.sharding is False
    assert options.use_hierarchical_embedding_lookup is None
    assert options.mode == "train"
    assert (options.comm_pool_capacity, options.comm_pool_name) == (1, "default")
    assert options.batch_size is None and options.comm_wire_dtype is None
    assert options.embedding_gradient == "mean" and options.data_batch_count == 1


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("HB_GRAD_NBUCKETS", "2", "grad_nbuckets", 2),
        ("HB_GRAD_LAZY_SYNC", "True", "grad_lazy_sync", True),
        ("HB_PIPELINE_DENSE_GA_ENABLED", "1", "pipeline_dense_ga_enabled", True),
        ("HB_COMM_WIRE_DTYPE", "bfloat16", "comm_wire_dtype", "bfloat16"),
        ("HB_USE_HIERARCHICAL_EMBEDDING_LOOKUP", "0", "use_hierarchical_embedding_lookup", False),
        ("HB_COMM_DEFAULT", "shm", "comm_default", "shm"),
        ("HB_COMM_DEFAULT", "NCCL", "comm_default", "auto"),
        ("HB_COMM_POOL_CAPACITY", "3", "comm_pool_capacity", 3),
        ("LOCKSTEP_STALL_TIMEOUT", "2.5", "stall_timeout_s", 2.5),
    ],
)
def test_environment_sets_the_default(variable, text, name, value):
    assert getattr(Options.from_environment({variable: text}), name) == value


def test_our_variable_wins_over_hybridbackends():
    assert Options.from_environment({"HB_COMM_DEFAULT": "NCCL", "LOCKSTEP_COMM": "shm"}).comm_default == "shm"


def test_bad_variable_is_named():
    with pytest.raises(ValueError, match=r"HB_GRAD_NBUCKETS.*grad_nbuckets.*'many'.*integer"):
        Options.from_environment({"HB_GRAD_NBUCKETS": "many"})


# Promise (hybridbackend.md): type and range are (HybridBackend: a value of an option is not checked).
@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("batch_size", "abc", ValueError),
        ("batch_size", 1.5, TypeError),
        ("batch_size", 0, ValueError),
        ("batch_size", True, TypeError),
        ("grad_nbuckets", None, TypeError),
        ("sharding", 1, TypeError),
        ("sharding", "perhaps", ValueError),
        ("mode", "predict", ValueError),
        ("model_dir", 3, TypeError),
        ("comm_default", "smoke signals", ValueError),
        ("stall_timeout_s", 0, ValueError),
        ("stall_timeout_s", float("nan"), ValueError),
        ("comm_wire_dtype", "int32", ValueError),
        ("seed", -1, ValueError),
        ("embedding_gradient", "max", ValueError),
        ("data_batch_count", 0, ValueError),
        ("keep_checkpoint_every_n_hours", "often", ValueError),
    ],
)
def test_wrong_value_is_refused_and_changes_nothing(name, value, error):
    options = Options()
    with pytest.raises(error, match=name):
        setattr(options, name, value)
    assert options == Options()


def test_the_types_that_editors_see_are_those_of_the_options():
    assert list(get_type_hints(OptionValues).items()) == list(get_type_hints(Options).items())


def test_an_unknown_option_is_refused_with_the_one_that_was_meant():
    with pytest.raises(AttributeError, match="^unknown option 'grad_nbucket'; did you mean 'grad_nbuckets'[?]$"):
        Options().update(grad_nbucket=2)
    with pytest.raises(AttributeError, match="unknown option 'zzz'; the options are background_saves, batch_size, "):
        Options().update(zzz=2)


def test_values_are_converted():
    options = Options()
    options.update(batch_size=np.int64(16), sharding=np.bool_(True))
    assert options.batch_size == 16 and type(options.batch_size) is int
    assert options.sharding is True
    options.batch_size = -1
    assert options.batch_size is None


@pytest.mark.parametrize("spelling", ["float16", tf.float16, np.float16, np.dtype("float16")])
def test_wire_dtype_takes_every_spelling(spelling):
    options = Options()
    options.comm_gradient_wire_dtype = spelling
    assert options.comm_gradient_wire_dtype == "float16"


def test_unknown_option_is_refused_with_the_known_ones():
    with pytest.raises(AttributeError, match=r"'zzz'.*comm_default.*grad_nbuckets.*use_hierarchical"):
        Options().zzz = 2


def test_update_changes_all_or_nothing():
    options = Options()
    with pytest.raises(AttributeError, match="nonsense"):
        options.update(grad_nbuckets=3, nonsense=1)
    assert options == Options()
    assert options.update(grad_nbuckets=3, mode="eval") == {"grad_nbuckets": 1, "mode": "train"}
    assert (options.grad_nbuckets, options.mode) == (3, "eval")


def test_what_connecting_read_is_fixed_while_connected():
    options = Options()
    options.set_connected(True)
    options.stall_timeout_s = options.stall_timeout_s
    with pytest.raises(ValueError, match="stall_timeout_s.*7.*connected"):
        options.update(grad_nbuckets=2, stall_timeout_s=7)
    assert options.grad_nbuckets == 1
    options.set_connected(False)
    options.stall_timeout_s = 7


@pytest.mark.parametrize(("text", "seconds"), [("2.5", 2.5), ("0", 0), ("never", 0), ("Off", 0)])
def test_a_time_may_be_never(text, seconds):
    assert Options.from_environment({"LOCKSTEP_END_AFTER_LOSS": text}).end_after_loss_s == seconds


@pytest.mark.parametrize("bad", ["-1", "soon", "nan", ""])
def test_a_time_that_is_none_is_refused_with_its_variable(bad):
    with pytest.raises(ValueError, match="LOCKSTEP_END_AFTER_LOSS: .*got .*, wanted a.* number of seconds"):
        Options.from_environment({"LOCKSTEP_END_AFTER_LOSS": bad})


def test_a_program_without_docstrings_has_all_options(monkeypatch):
    monkeypatch.setattr(Options, "__doc__", None)  # as `python -OO` makes it

    def function(**options):
        return options

    assert set(get_type_hints(Options)) == set(inspect.signature(takes_options(function)).parameters)
