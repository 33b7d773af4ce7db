"""The names of the table in docs/horovod.md, and the parameters of training functions, equal Horovod 0.28.1's."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.oldest

PAGE = Path(__file__).parents[2] / "docs" / "horovod.md"

_EXCHANGE = "device_dense= device_sparse= compression= sparse_as_dense="
_KERAS = {
    "broadcast_global_variables": "root_rank",
    "allreduce": "value name= average= prescale_factor= postscale_factor= op= compression=",
    "allgather": "value name=",
    "broadcast": "value root_rank name=",
    "reducescatter": "value name= op=",
    "load_model": "filepath custom_optimizers= custom_objects= compression= legacy_opts=",
}
_CALLBACKS = {
    "BroadcastGlobalVariablesCallback": "root_rank device= local_variables=",
    "MetricAverageCallback": "device=",
    "LearningRateScheduleCallback": "initial_lr multiplier start_epoch= end_epoch= staircase= momentum_correction= "
    "steps_per_epoch=",
    "LearningRateWarmupCallback": "initial_lr warmup_epochs= momentum_correction= steps_per_epoch= verbose=",
    "BestModelCheckpoint": "monitor= verbose= save_weights_only= mode= save_freq=",
}
# Parameters in their order, with `=` where they have a default.
PARAMETERS = {
    "horovod.tensorflow": {
        "DistributedOptimizer": f"optimizer name= use_locking= {_EXCHANGE} backward_passes_per_step= op= "
        "gradient_predivide_factor= average_aggregated_gradients= num_groups= groups= process_set= "
        "scale_local_gradients=",
        "DistributedGradientTape": f"gradtape {_EXCHANGE} op= gradient_predivide_factor= num_groups= groups= "
        "process_set= scale_local_gradients=",
    },
    "horovod.tensorflow.keras": {
        **_KERAS,
        "DistributedOptimizer": f"optimizer name= {_EXCHANGE} gradient_predivide_factor= op= "
        "backward_passes_per_step= average_aggregated_gradients= num_groups= groups= process_set= "
        "scale_local_gradients=",
    },
    "horovod.keras": {
        **_KERAS,
        "DistributedOptimizer": f"optimizer name= {_EXCHANGE} gradient_predivide_factor= op= num_groups= groups=",
        "PartialDistributedOptimizer": f"optimizer name= {_EXCHANGE} gradient_predivide_factor= op= "
        "backward_passes_per_step= average_aggregated_gradients= groups= process_set= local_layers= "
        "scale_local_gradients=",
    },
    "horovod.tensorflow.keras.callbacks": _CALLBACKS,
    "horovod.keras.callbacks": _CALLBACKS | {"BestModelCheckpoint": "monitor= verbose= mode= save_freq="},
    "horovod.spark": {
        "run": "fn args= kwargs= num_proc= start_timeout= use_mpi= use_gloo= extra_mpi_args= env= stdout= stderr= "
        "verbose= nics= prefix_output_with_timestamp= executable="
    },
}


def _rows():
    """Returns module and names of each row of the page's table."""
    section = PAGE.read_text().split("## Names\n")[1].split("\n## ")[0]
    modules = []
    for line in section.splitlines():
        cells = [re.findall(r"`([\w.]+)`", cell) for cell in line.split("|")[1:3]]
        if cells and (cells[0] or cells[1]):
            modules = cells[0] or modules
            yield from ((module, name) for module in modules for name in cells[1] or [None])


# Promise (horovod.md): names and parameters of training functions are Horovod's.
@pytest.mark.parametrize(("module", "name"), list(_rows()))
def test_the_pages_names_are_there(module, name):
    found = importlib.import_module(module)
    assert name is None or hasattr(found, name)


@pytest.mark.parametrize("module", PARAMETERS)
def test_the_page_lists_the_functions_whose_parameters_are_fixed(module):
    assert PARAMETERS[module].keys() <= {name for of, name in _rows() if of == module}


# Promise (horovod.md): names and parameters of training functions are Horovod's.
@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in PARAMETERS.items() for name in names])
def test_parameters_begin_with_horovods(module, name):
    # Additional parameters of ours come after Horovod's.
    function = getattr(importlib.import_module(module), name)
    parameters = inspect.signature(function).parameters.values()
    got = [parameter.name + ("" if parameter.default is parameter.empty else "=") for parameter in parameters]
    wanted = PARAMETERS[module][name].split()
    assert got[: len(wanted)] == wanted
    assert all(each.endswith("=") or each in ("args", "kwargs") for each in got[len(wanted) :])
