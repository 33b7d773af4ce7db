"""`hb.estimator`: names of HybridBackend's estimators, and those of `tf.estimator` that programs give them."""

from lockstep.estimator import (
    Estimator,
    EstimatorSpec,
    EvalSpec,
    ModeKeys,
    RunConfig,
    TrainSpec,
    export,
    train_and_evaluate,
)

__all__ = [
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "ModeKeys",
    "RunConfig",
    "TrainSpec",
    "export",
    "train_and_evaluate",
]
