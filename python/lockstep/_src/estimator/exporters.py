"""Exports of an estimator: inputs, outputs and exporters, following `tf.estimator.export` and `tf.estimator`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lockstep._src.engine import arguments

_tf1 = tf.compat.v1
_saved_model = _tf1.saved_model
_DEFAULT_KEY = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY

Tensors = Any  # a tensor (dense, sparse or ragged), or a dict of name to tensor


class _ServingInputReceiver(NamedTuple):
    features: Tensors
    receiver_tensors: dict[str, Any]
    receiver_tensors_alternatives: dict[str, dict[str, Any]] | None


class ServingInputReceiver(_ServingInputReceiver):
    """The inputs of a served model, and the features that are computed from them.

    Args:
      features: the features for the model function.
      receiver_tensors: the inputs that a server feeds: a tensor, or a dict of name to tensor (placeholders, also sparse
        ones).
      receiver_tensors_alternatives: name to a dict of other tensors that can be fed in the same graph.

    Raises:
      TypeError: an input has no name, or is not a tensor.
    """

    __slots__ = ()

    def __new__(
        cls, features: Tensors, receiver_tensors: Tensors, receiver_tensors_alternatives: Any = None
    ) -> ServingInputReceiver:
        inputs = _named("ServingInputReceiver: receiver_tensors", receiver_tensors, "input")
        return super().__new__(cls, features, inputs, receiver_tensors_alternatives)


def _named(what: str, tensors: Any, default: str) -> dict[str, Any]:
    named = dict(tensors) if isinstance(tensors, Mapping) else {default: tensors}
    for name, tensor in named.items():
        if not isinstance(name, str) or not tf.is_tensor(tensor):
            raise TypeError(f"{what}: got {name!r}: {tensor!r}, wanted a name and a tensor")
    return named


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a function that makes a placeholder for each feature, so that the features themselves are the inputs.

    The placeholder of a sparse or ragged feature is sparse or ragged: in a dense one, padding would count.

    Args:
      features: name to a tensor with the type and shape of the feature.
      default_batch_size: rows of a batch; None: any number.
    """
    specs = {name: _spec_of(tensor, default_batch_size) for name, tensor in features.items()}

    def receive() -> ServingInputReceiver:
        inputs = {name: _placeholder(spec, name) for name, spec in specs.items()}
        return ServingInputReceiver(dict(inputs), inputs)

    return receive


def _spec_of(tensor: Any, rows: int | None) -> Any:
    """Returns the specification of tensors of this kind with a number of rows."""
    if isinstance(tensor, (tf.SparseTensor, _tf1.SparseTensorValue)):
        # A value has no attribute `shape`, and its parts may be lists. Batches have lists of other lengths.
        rank = len(tensor.shape if isinstance(tensor, tf.SparseTensor) else tensor.dense_shape)
        return tf.SparseTensorSpec([rows, *[None] * (rank - 1)], _dtype_of(tensor.values))
    shape = tf.TensorShape([rows]).concatenate(tensor.shape[1:])
    if isinstance(tensor, (tf.RaggedTensor, _tf1.ragged.RaggedTensorValue)):
        return tf.RaggedTensorSpec(shape, tf.as_dtype(tensor.dtype), tensor.ragged_rank)
    return tf.TensorSpec(shape, tensor.dtype)


def _dtype_of(values: Any) -> tf.DType:
    return tf.as_dtype(values.dtype if hasattr(values, "dtype") else np.asarray(values).dtype)


def _placeholder(spec: Any, name: str) -> Any:
    if isinstance(spec, tf.RaggedTensorSpec):
        return _tf1.ragged.placeholder(spec.dtype, spec.ragged_rank, spec.shape[spec.ragged_rank + 1 :], name)
    if isinstance(spec, tf.SparseTensorSpec):
        return _tf1.sparse_placeholder(spec.dtype, spec.shape, name)
    return _tf1.placeholder(spec.dtype, spec.shape, name)


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a function that makes a placeholder for serialized `tf.train.Example`s, and parses them.

    Args:
      feature_spec: the features, as in `tf.io.parse_example`.
      default_batch_size: rows of a batch; None: any number.
    """

    def receive() -> ServingInputReceiver:
        serialized = _tf1.placeholder(tf.string, [default_batch_size], "input_example_tensor")
        return ServingInputReceiver(_tf1.parse_example(serialized, dict(feature_spec)), {"examples": serialized})

    return receive


class PredictOutput:
    """Outputs of any kind: a tensor or a dict of tensors."""

    def __init__(self, outputs: Tensors) -> None:
        self.outputs = _named("PredictOutput: outputs", outputs, "output")

    def as_signature_def(self, receiver_tensors: dict[str, Any]) -> Any:
        """Returns the signature from the inputs to the outputs."""
        return _saved_model.predict_signature_def(receiver_tensors, self.outputs)


class ClassificationOutput:
    """Classes and their scores; the input must be one tensor of serialized examples."""

    def __init__(self, scores: tf.Tensor | None = None, classes: tf.Tensor | None = None) -> None:
        if scores is None and classes is None:
            raise ValueError("ClassificationOutput: scores and classes are None, wanted at least one of them")
        self.scores, self.classes = scores, classes

    def as_signature_def(self, receiver_tensors: dict[str, Any]) -> Any:
        """Returns the signature from serialized examples to classes and scores."""
        return _saved_model.classification_signature_def(_examples(receiver_tensors), self.classes, self.scores)


class RegressionOutput:
    """One number per row; the input must be one tensor of serialized examples."""

    def __init__(self, value: tf.Tensor) -> None:
        self.value = value

    def as_signature_def(self, receiver_tensors: dict[str, Any]) -> Any:
        """Returns the signature from serialized examples to numbers."""
        return _saved_model.regression_signature_def(_examples(receiver_tensors), self.value)


def _examples(receiver_tensors: dict[str, Any]) -> tf.Tensor:
    tensors = list(receiver_tensors.values())
    if len(tensors) != 1 or tensors[0].dtype != tf.string:
        raise ValueError(
            f"ClassificationOutput and RegressionOutput need one input tensor of strings, got {receiver_tensors}"
        )
    return tensors[0]


def signatures(export_outputs: Mapping[str, Any] | None, predictions: Tensors, receiver: Any) -> dict[str, Any]:
    """Returns the signatures of an exported model, by name.

    Args:
      export_outputs: outputs by name; None: the predictions.
      predictions: the model's predictions.
      receiver: a ServingInputReceiver.

    Raises:
      ValueError: there are several outputs, and none of them has the default name.
    """
    outputs = dict(export_outputs) if export_outputs else {_DEFAULT_KEY: PredictOutput(predictions)}
    if _DEFAULT_KEY not in outputs:
        if len(outputs) > 1:
            raise ValueError(f"export_outputs has {sorted(outputs)}, wanted one of them to be {_DEFAULT_KEY!r}")
        outputs[_DEFAULT_KEY] = next(iter(outputs.values()))
    inputs = {"": receiver.receiver_tensors}
    for name, tensors in (getattr(receiver, "receiver_tensors_alternatives", None) or {}).items():
        inputs[f"{name}:"] = tensors
    fed = {prefix: _named("ServingInputReceiver: an input", tensors, "input") for prefix, tensors in inputs.items()}
    return {prefix + name: out.as_signature_def(fed[prefix]) for prefix in fed for name, out in outputs.items()}


class Exporter:
    """The base of exporters, which export a model after an evaluation. Only worker 0 calls them."""

    @property
    def name(self) -> str:
        """The name of the exporter, and of its directory in `export/` of the model's directory."""
        raise NotImplementedError

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> str | None:
        """Exports the model, or decides not to.

        Args:
          estimator: the `Estimator`.
          export_path: the directory for exports of this name.
          checkpoint_path: the prefix of the evaluated checkpoint.
          eval_result: the values of the evaluation by name.
          is_the_final_export: true if training has ended.

        Returns:
          The directory of the export; None if nothing was exported.
        """
        raise NotImplementedError


class _SavedModelExporter(Exporter):
    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        arguments.integer(f"exporter {name!r}", "exports_to_keep", exports_to_keep, 1)
        self._name = name
        self._receive = serving_input_receiver_fn
        self._assets_extra = assets_extra
        self._as_text = as_text
        self._exports_to_keep = exports_to_keep

    @property
    def name(self) -> str:
        return self._name

    def _export(self, estimator: Any, export_path: str, checkpoint_path: str) -> str | None:
        exported = estimator.export_saved_model(
            export_path,
            self._receive,
            assets_extra=self._assets_extra,
            as_text=self._as_text,
            checkpoint_path=checkpoint_path,
        )
        if self._exports_to_keep is not None:
            numbers = sorted(int(n.strip("/")) for n in tf.io.gfile.listdir(export_path) if n.strip("/").isdecimal())
            for number in numbers[: -self._exports_to_keep]:
                tf.io.gfile.rmtree(os.path.join(export_path, str(number)))
        return exported


class FinalExporter(_SavedModelExporter):
    """An exporter that exports once, when training has ended."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep=None)

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> str | None:
        del eval_result
        return self._export(estimator, export_path, checkpoint_path) if is_the_final_export else None


class LatestExporter(_SavedModelExporter):
    """An exporter that exports after every evaluation, and keeps the last few exports.

    Args:
      name: the name of the directory.
      serving_input_receiver_fn: as in `Estimator.export_saved_model`.
      assets_extra: as in `Estimator.export_saved_model`.
      as_text: as in `Estimator.export_saved_model`.
      exports_to_keep: the number of exports to keep; None: all.
    """

    _last: tuple[str, str | None] | None = None  # a checkpoint, and the directory of its export

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> str | None:
        del eval_result
        # The final call may be for a checkpoint that was already exported after the last evaluation.
        if not is_the_final_export or self._last is None or self._last[0] != checkpoint_path:
            self._last = (checkpoint_path, self._export(estimator, export_path, checkpoint_path))
        return self._last[1]


class BestExporter(_SavedModelExporter):
    """An exporter that exports if an evaluation is better than all earlier ones in this run.

    Args:
      name: the name of the directory.
      serving_input_receiver_fn: as in `Estimator.export_saved_model`.
      compare_fn: `compare_fn(best_eval_result, current_eval_result)` returns whether the current result is better.
        None: it is better if its loss is lower.
      assets_extra: as in `Estimator.export_saved_model`.
      as_text: as in `Estimator.export_saved_model`.
      exports_to_keep: the number of exports to keep; None: all.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        compare_fn: Callable[..., bool] | None = None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        if serving_input_receiver_fn is None:
            raise ValueError(f"exporter {name!r}: serving_input_receiver_fn is None, wanted a function")
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)
        self._is_better = compare_fn or _has_lower_loss
        self._best: Any = None

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> str | None:
        del is_the_final_export
        if self._best is not None and not self._is_better(best_eval_result=self._best, current_eval_result=eval_result):
            return None
        self._best = eval_result
        return self._export(estimator, export_path, checkpoint_path)


def _has_lower_loss(best_eval_result: Mapping[str, Any], current_eval_result: Mapping[str, Any]) -> bool:
    for result in (best_eval_result, current_eval_result):
        if not result or "loss" not in result:
            raise ValueError(f"BestExporter: an evaluation returned {result!r}, wanted a 'loss' to compare")
    return bool(current_eval_result["loss"] < best_eval_result["loss"])
