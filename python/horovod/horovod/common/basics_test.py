import pytest

from horovod.common.basics import HorovodBasics
from horovod.tensorflow import mpi_ops
from lockstep.testing import call_workers

# All of them are false without a GPU (tests/standin/options_test.py has one).
_BUILT = "mpi_enabled mpi_built nccl_built ddl_built ccl_built cuda_built rocm_built"


def test_values_of_op_are_horovods():
    values = {name: getattr(HorovodBasics, name) for name in ("Average", "Sum", "Adasum", "Min", "Max", "Product")}
    assert values == {"Average": 0, "Sum": 1, "Adasum": 2, "Min": 3, "Max": 4, "Product": 5}


def test_parts_of_the_installation():
    basics = HorovodBasics()
    assert not any(getattr(basics, name)() for name in _BUILT.split())
    assert basics.gloo_enabled() and basics.gloo_built()
    with pytest.raises(ValueError, match="MPI is not enabled"):
        basics.mpi_threads_supported()


def test_functions_of_the_module_are_methods_of_one_object():
    for name in ("init", "shutdown", "size", "rank", "is_homogeneous", *_BUILT.split()):
        assert getattr(mpi_ops, name).__self__ is mpi_ops._basics


def _joins_and_leaves():
    basics = HorovodBasics()
    questions = [basics.rank, basics.size, basics.local_rank, basics.local_size, basics.cross_rank, basics.cross_size]
    for question in [*questions, basics.is_homogeneous, basics.stop_timeline]:
        with pytest.raises(ValueError, match=r"Horovod has not been initialized; use hvd.init\(\)"):
            question()
    assert not basics.is_initialized()
    basics.init()
    basics.init()
    assert basics.is_initialized() and basics.is_homogeneous()
    answers = [question() for question in questions]
    with pytest.raises(ValueError, match="already, without the process set"):
        basics.init(process_sets=[mpi_ops.ProcessSet([answers[0]])])
    basics.shutdown()
    basics.shutdown()
    assert not basics.is_initialized()
    return answers


@pytest.mark.workers
def test_places_of_two_workers_of_this_machine():
    assert call_workers(_joins_and_leaves, 2, timeout_s=60) == [[0, 2, 0, 2, 0, 1], [1, 2, 1, 2, 0, 1]]
