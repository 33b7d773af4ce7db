"""Estimators on all workers of a job. They follow `tf.estimator`, which TensorFlow 2.16 removed."""

from lockstep import _assembly  # noqa: F401
from lockstep._src.estimator.estimator import Estimator, train_and_evaluate
from lockstep._src.estimator.exporters import BestExporter, Exporter, FinalExporter, LatestExporter
from lockstep._src.estimator.specs import EstimatorSpec, EvalSpec, ModeKeys, RunConfig, TrainSpec
from lockstep._src.estimator.warm_start import WarmStartSettings
from lockstep.estimator import export, inputs

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
