"""Data parallelism by wrapping: optimizers and tapes that exchange gradients by name, moments over all ranks."""

from lockstep._src.gradients.adasum import AdasumOptimizer
from lockstep._src.gradients.exchange import GradientExchange as Reducer
from lockstep._src.gradients.keras_hooks import is_exchanging
from lockstep._src.gradients.keras_optimizers import CallableList, make_variables_callable
from lockstep._src.gradients.keras_optimizers import make_exchanging as make_exchanging_keras_optimizer
from lockstep._src.gradients.settings import Exchange
from lockstep._src.gradients.tape import make_exchanging as make_exchanging_tape
from lockstep._src.gradients.tensorflow1_optimizers import ExchangingOptimizer
from lockstep._src.replicas.named_moments import moments_of_all

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
