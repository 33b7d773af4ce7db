"""Optimizers that exchange gradients without a scope: new classes, or classes of the user with a decorator."""

from __future__ import annotations

from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.training import training as tf_training

from lockstep._src.estimator import tf1_estimator
from lockstep._src.estimator.estimator import Estimator
from lockstep._src.gradients import tensorflow1_optimizers
from lockstep._src.tables.updates.lazy_adam import LazyAdamOptimizer

Class = TypeVar("Class", bound=type)

_OPTIMIZER = tf.compat.v1.train.Optimizer
_PHASES = ("compute_gradients", "apply_gradients")
_TENSORFLOWS_ESTIMATORS = ("tensorflow_estimator.python.estimator.estimator", tf1_estimator.__name__)
# The optimizers of TensorFlow and of this library by name, and the exchanging classes already made from them.
_OFFERED = {**vars(tf_training), LazyAdamOptimizer.__name__: LazyAdamOptimizer}
_made: dict[type, Any] = {}


def wraps_optimizer(cls: Class, aggregation: str | None = None) -> Class:
    """Makes a class of optimizers exchange gradients between workers, in a scope or not. Usable as a decorator.

    Variables of the graph that are initialized after `apply_gradients` also start with worker 0's values. Follows
    HybridBackend's `hb.train.wraps_optimizer`.

    Args:
      cls: a subclass of `tf.compat.v1.train.Optimizer`. A user's class is changed and returned, so that
        `super(MyOptimizer, self)` in its methods keeps its meaning. For a class of TensorFlow or of this library, a
        subclass is returned.
      aggregation: the method that exchanges: 'compute_gradients' or 'apply_gradients'. None: the option
        `grad_lazy_sync` decides when an optimizer is used.

    Raises:
      TypeError: `cls` is not a class of TensorFlow 1 optimizers.
      ValueError: `aggregation` has another value.
    """
    if not isinstance(cls, type) or not issubclass(cls, _OPTIMIZER):
        raise TypeError(f"wraps_optimizer: got {cls!r}, wanted a subclass of tf.compat.v1.train.Optimizer")
    if aggregation is not None and aggregation not in _PHASES:
        raise ValueError(f"wraps_optimizer: aggregation is {aggregation!r}, wanted one of {', '.join(_PHASES)}")
    if cls.__module__.partition(".")[0] in ("tensorflow", "lockstep"):
        if aggregation is None and cls in _made:
            return _made[cls]
        made: Any = type(cls.__name__, (cls,), {"__doc__": cls.__doc__, "__module__": __name__})
        if aggregation is None:
            _made[cls] = _made[made] = made
        cls = made
    lazy = None if aggregation is None else aggregation == "apply_gradients"
    tensorflow1_optimizers.exchange_in(cls, lazy)
    return cls


def wraps(cls: Class) -> Class:
    """Makes a class work for a job; follows HybridBackend's `hb.wraps`.

    A class of optimizers is passed to `wraps_optimizer`. For `tf.estimator.Estimator`, of TensorFlow or of `--tf1`,
    this library's `Estimator` is returned. All other classes are returned unchanged; this library's estimators need no
    wrapping.

    Raises:
      TypeError: `cls` is not a class.
      NotImplementedError: `cls` is an estimator that derives from TensorFlow's.
    """
    if not isinstance(cls, type):
        raise TypeError(f"wraps: got {cls!r}, wanted a class")
    if issubclass(cls, _OPTIMIZER):
        return wraps_optimizer(cls)
    if cls.__module__ in _TENSORFLOWS_ESTIMATORS:
        return Estimator  # type: ignore[return-value]
    if any(base.__module__.partition(".")[0] == "tensorflow_estimator" for base in cls.__mro__):
        raise NotImplementedError(
            f"wraps: {cls.__name__} derives from TensorFlow's own estimators, whose sessions span one worker; derive "
            "it from hb.estimator.Estimator, which needs no wrapping"
        )
    return cls


def names() -> list[str]:
    """Returns the names that `optimizer(name)` accepts: TensorFlow's optimizers and lazy Adam."""
    return sorted(name for name, value in _OFFERED.items() if _is_kind(value))


def optimizer(name: str) -> Any:
    """Returns the class `tf.compat.v1.train.<name>`, or `LazyAdamOptimizer`, with the exchange of gradients.

    Raises:
      AttributeError: there is no optimizer of this name.
    """
    found: Any = _OFFERED.get(name)
    if not _is_kind(found):
        raise AttributeError(f"TensorFlow has no optimizer {name!r}; there are {', '.join(names())}")
    return wraps_optimizer(found)


def _is_kind(value: Any) -> bool:
    # SyncReplicasOptimizer has an exchange of its own, so gradients would be exchanged twice.
    others = (_OPTIMIZER, tf.compat.v1.train.SyncReplicasOptimizer)
    return isinstance(value, type) and issubclass(value, _OPTIMIZER) and value not in others
