"""`tf.estimator` for TensorFlow 1 programs: `lockstep.estimator`, but for each process by itself after `hvd.init()`."""

from lockstep._src.estimator.tf1_estimator import Estimator
from lockstep.estimator import (
    BestExporter,
    EstimatorSpec,
    EvalSpec,
    Exporter,
    FinalExporter,
    LatestExporter,
    ModeKeys,
    RunConfig,
    TrainSpec,
    WarmStartSettings,
    export,
    inputs,
    train_and_evaluate,
)

__all__ = [
    "BestExporter",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FinalExporter",
    "LatestExporter",
    "ModeKeys",
    "RunConfig",
    "TrainSpec",
    "WarmStartSettings",
    "export",
    "inputs",
    "train_and_evaluate",
]
