"""Data parallelism by wrapping: optimizers and tapes that exchange gradients by name, moments over all ranks."""

from lockstep._src.data_parallel.exchange import Exchange
from lockstep._src.data_parallel.keras_optimizers import CallableList, is_exchanging, make_variables_callable
from lockstep._src.data_parallel.keras_optimizers import make_exchanging as make_exchanging_keras_optimizer
from lockstep._src.data_parallel.moments import moments_of_all
from lockstep._src.data_parallel.reducer import Reducer
from lockstep._src.data_parallel.tape import make_exchanging as make_exchanging_tape
from lockstep._src.data_parallel.tensorflow1 import AdasumOptimizer, ExchangingOptimizer

__all__ = [
    "AdasumOptimizer",
    "CallableList",
    "Exchange",
    "ExchangingOptimizer",
    "Reducer",
    "is_exchanging",
    "make_exchanging_keras_optimizer",
    "make_exchanging_tape",
    "make_variables_callable",
    "moments_of_all",
]
