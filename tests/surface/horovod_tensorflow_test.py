"""Names and parameters of `horovod.tensorflow` equal Horovod 0.28.1's."""

import importlib
import inspect
import os
import pickle
import subprocess
import sys

import pytest

import horovod.common.util
import horovod.tensorflow as hvd
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.process_sets import global_process_set

pytestmark = pytest.mark.oldest

# Parameters in their order, with `=` where they have a default.
PARAMETERS = {
    "ProcessSet": "ranks_or_comm",
    "add_process_set": "process_set",
    "allgather": "tensor name= ignore_name_scope= process_set=",
    "allgather_object": "obj session= name= process_set=",
    "allreduce": "tensor average= device_dense= device_sparse= compression= op= prescale_factor= postscale_factor= "
    "name= process_set= ignore_name_scope=",
    "alltoall": "tensor splits= name= ignore_name_scope= process_set=",
    "broadcast": "tensor root_rank name= ignore_name_scope= process_set=",
    "broadcast_": "variables root_rank name= process_set=",
    "broadcast_global_variables": "root_rank",
    "broadcast_object": "obj root_rank= session= name= process_set=",
    "broadcast_object_fn": "root_rank= session= name= process_set=",
    "broadcast_variables": "variables root_rank process_set= inplace=",
    "grouped_allgather": "tensors name= ignore_name_scope= process_set=",
    "grouped_allreduce": "tensors average= device_dense= device_sparse= compression= op= prescale_factor= "
    "postscale_factor= process_set= ignore_name_scope= name=",
    "grouped_reducescatter": "tensors device_dense= compression= op= process_set= prescale_factor= postscale_factor=",
    "init": "comm= process_sets=",
    "join": "",
    "local_rank_op": "name=",
    "local_size_op": "name=",
    "process_set_included_op": "process_set_id= name=",
    "rank_op": "name=",
    "reducescatter": "tensor device_dense= compression= op= name= process_set= ignore_name_scope= prescale_factor= "
    "postscale_factor=",
    "remove_process_set": "process_set",
    "size_op": "process_set_id= name=",
    "BroadcastGlobalVariablesHook": "root_rank device=",
    **dict.fromkeys(("shutdown", "is_initialized", "is_homogeneous", "mpi_threads_supported"), ""),
    **dict.fromkeys(("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"), ""),
    **dict.fromkeys(("mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built", "nccl_built"), ""),
    **dict.fromkeys(("ddl_built", "ccl_built", "cuda_built", "rocm_built"), ""),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name):
    parameters = inspect.signature(getattr(hvd, name)).parameters.values()
    got = " ".join(p.name + ("" if p.default is p.empty else "=") for p in parameters)
    assert got == PARAMETERS[name]
    assert name in hvd.__all__


def test_values_of_op():
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5)


def test_what_programs_import_from_elsewhere():
    """The names are in Horovod's own modules."""
    assert hvd.global_process_set is global_process_set and global_process_set.process_set_id == 0
    assert issubclass(HorovodInternalError, RuntimeError) and HostsUpdatedInterrupt(True).skip_sync
    util = horovod.common.util
    assert util.gloo_built() and not util.mpi_built()
    assert util.extension_available("tensorflow") and not util.extension_available("torch")
    assert util.split_list(list(range(7)), 3) == [[0, 1, 2], [3, 4], [5, 6]]
    assert util.is_version_greater_equal_than("2.15.1", "2.4.0")
    assert not util.is_version_greater_equal_than("2.3.9", "2.4.0")
    with pytest.raises(ValueError, match="major.minor.patch"):
        util.is_version_greater_equal_than("2.15.1", "2.4")
    with util.env(HVD_TEST="x", HVD_NONE=None):
        assert os.environ["HVD_TEST"] == "x" and "HVD_NONE" not in os.environ
    assert "HVD_TEST" not in os.environ


@pytest.mark.parametrize(
    "name",
    [
        *("horovod.common.exceptions.HorovodInternalError", "horovod.common.exceptions.HostsUpdatedInterrupt"),
        *("horovod.common.elastic.State", "horovod.common.elastic.ObjectState"),
        *("horovod.common.process_sets.ProcessSet", "horovod.runner.elastic.worker.HostUpdateResult"),
        *("horovod.tensorflow.BroadcastGlobalVariablesHook", "horovod.tensorflow.compression.FP16Compressor"),
        *("horovod.tensorflow.elastic.ObjectState", "horovod.tensorflow.elastic.TensorFlowKerasState"),
        *("horovod.tensorflow.sync_batch_norm.SyncBatchNormalization", "horovod.keras.callbacks.MetricAverageCallback"),
        *("horovod.tensorflow.keras.callbacks.MetricAverageCallback", "horovod.keras.elastic.CommitStateCallback"),
    ],
)
def test_pickles_and_saved_models_name_horovods_modules(name):
    module, _, of_class = name.rpartition(".")
    found = getattr(importlib.import_module(module), of_class)
    assert (found.__module__, found.__qualname__) == (module, of_class)
    assert pickle.loads(pickle.dumps(found)) is found


def test_modules_that_pickles_name_are_loaded_with_the_api():
    """Else cloudpickle copies the class into each pickle, and a process that reads one gets a class of its own."""
    program = """
import sys
import horovod.tensorflow as hvd
from horovod.tensorflow.elastic import TensorFlowKerasState

ours = [module for name, module in list(sys.modules.items()) if name.startswith("lockstep._src.compat.horovod")]
classes = {value for module in ours for value in vars(module).values() if isinstance(value, type)}
named = {value.__module__ for value in classes if value.__module__.startswith("horovod")}
print(len(named) > 4, sorted(named - set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=300)
    assert done.stdout == "True []\n"
