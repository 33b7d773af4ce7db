"""`hb.estimator`: names of HybridBackend's estimators, and names of `tf.estimator` for their arguments."""

from lockstep.estimator import (
    Estimator,
    EstimatorSpec,
    EvalSpec,
    ModeKeys,
    RunConfig,
    TrainSpec,
    WarmStartSettings,
    export,
    inputs,
    train_and_evaluate,
)
from lockstep.estimator.export import ServingInputReceiver

__all__ = [
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "ModeKeys",
    "RunConfig",
    "ServingInputReceiver",
    "TrainSpec",
    "WarmStartSettings",
    "export",
    "inputs",
    "train_and_evaluate",
]
