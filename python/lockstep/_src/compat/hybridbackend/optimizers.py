"""Optimizers that exchange gradients without a scope: classes of their own, or the user's, decorated."""

from __future__ import annotations

from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.training import training as tf_training

from lockstep._src.estimator import apart
from lockstep._src.estimator.estimator import Estimator
from lockstep._src.gradients import in_scope
from lockstep._src.tables.updates.lazy_adam import LazyAdamOptimizer

Class = TypeVar("Class", bound=type)

_OPTIMIZER = tf.compat.v1.train.Optimizer
_PHASES = ("compute_gradients", "apply_gradients")
_TENSORFLOWS_ESTIMATORS = ("tensorflow_estimator.python.estimator.estimator", apart.__name__)
# Classes that are not a program's own, by name; and those made of them on demand, once.
_OFFERED = {**vars(tf_training), LazyAdamOptimizer.__name__: LazyAdamOptimizer}
_made: dict[type, type] = {}


def wraps_optimizer(cls: Class, aggregation: str | None = None) -> Class:
    """Makes a class of optimizers exchange gradients between workers, in a scope or not. Usable as a decorator.

    Variables of the graph begin as worker 0's from then on, too, where they are initialized after `apply_gradients`.
    After HybridBackend's `hb.train.wraps_optimizer`.

    Args:
      cls: a subclass of `tf.compat.v1.train.Optimizer`. A user's class is changed and returned, so that
        `super(MyOptimizer, self)` in its methods keeps its meaning; of one of TensorFlow's, or this library's, a
        subclass is returned.
      aggregation: 'compute_gradients' or 'apply_gradients', where the exchange is; None: as the option `grad_lazy_sync`
        says when an optimizer is used.

    Raises:
      TypeError: `cls` is no class of optimizers of TensorFlow 1.
      ValueError: `aggregation` is neither.
    """
    if not isinstance(cls, type) or not issubclass(cls, _OPTIMIZER):
        raise TypeError(f"wraps_optimizer: got {cls!r}, wanted a subclass of tf.compat.v1.train.Optimizer")
    if aggregation is not None and aggregation not in _PHASES:
        raise ValueError(f"wraps_optimizer: aggregation is {aggregation!r}, wanted one of {', '.join(_PHASES)}")
    if cls.__module__.partition(".")[0] in ("tensorflow", "lockstep"):
        if aggregation is None and cls in _made:
            return _made[cls]
        made = type(cls.__name__, (cls,), {"__doc__": cls.__doc__, "__module__": __name__})
        if aggregation is None:
            _made[cls] = _made[made] = made
        cls = made
    lazy = None if aggregation is None else aggregation == "apply_gradients"
    in_scope.exchange_in(cls, lazy)
    return cls


def wraps(cls: Class) -> Class:
    """Makes a class work for a job: one of optimizers by `wraps_optimizer`; another is returned as it is.

    Estimators of this library work for a job as they are; `tf.estimator.Estimator`, of TensorFlow or of `--tf1`,
    becomes this library's. After HybridBackend's `hb.wraps`.

    Raises:
      NotImplementedError: an estimator that derives from TensorFlow's.
    """
    if not isinstance(cls, type):
        raise TypeError(f"wraps: got {cls!r}, wanted a class")
    if issubclass(cls, _OPTIMIZER):
        return wraps_optimizer(cls)
    if cls.__module__ in _TENSORFLOWS_ESTIMATORS:
        return Estimator  # type: ignore[return-value]
    if any(base.__module__.partition(".")[0] == "tensorflow_estimator" for base in cls.__mro__):
        raise NotImplementedError(
            f"wraps: {cls.__name__} derives from TensorFlow's own estimators, whose sessions are of one worker; derive "
            "it from hb.estimator.Estimator, which needs no wrapping"
        )
    return cls


def names() -> list[str]:
    """Names of TensorFlow's optimizers and of lazy Adam, of which `optimizer(name)` is one that exchanges gradients."""
    return sorted(name for name, value in _OFFERED.items() if _is_kind(value))


def optimizer(name: str) -> Any:
    """The class `tf.compat.v1.train.<name>`, or `LazyAdamOptimizer`, that exchanges gradients.

    Raises:
      AttributeError: there is none.
    """
    found = _OFFERED.get(name)
    if not _is_kind(found):
        raise AttributeError(f"TensorFlow has no optimizer {name!r}; there are {', '.join(names())}")
    return wraps_optimizer(found)


def _is_kind(value: Any) -> bool:
    # An optimizer of its own kind of parallelism would exchange twice.
    others = (_OPTIMIZER, tf.compat.v1.train.SyncReplicasOptimizer)
    return isinstance(value, type) and issubclass(value, _OPTIMIZER) and value not in others
