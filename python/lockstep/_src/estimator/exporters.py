"""What an estimator exports, and when: inputs, outputs and exporters, after `tf.estimator.export` and its likes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

_tf1 = tf.compat.v1
_saved_model = _tf1.saved_model
_DEFAULT_KEY = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY

Tensors = Any  # a tensor (dense, sparse or ragged), or a dict of name to tensor


class _ServingInputReceiver(NamedTuple):
    features: Tensors
    receiver_tensors: dict[str, Any]
    receiver_tensors_alternatives: dict[str, dict[str, Any]] | None


class ServingInputReceiver(_ServingInputReceiver):
    """What a server is fed, and what the model makes of it.

    Args:
      features: for the model function.
      receiver_tensors: what is fed: a tensor, or a dict of name to tensor (placeholders, also sparse ones).
      receiver_tensors_alternatives: name to a dict of other tensors that can be fed in the same graph.
    """

    __slots__ = ()

    def __new__(
        cls, features: Tensors, receiver_tensors: Tensors, receiver_tensors_alternatives: Any = None
    ) -> ServingInputReceiver:
        return super().__new__(cls, features, _named(receiver_tensors, "input"), receiver_tensors_alternatives)


def _named(tensors: Any, default: str) -> dict[str, Any]:
    named = dict(tensors) if isinstance(tensors, Mapping) else {default: tensors}
    for name, tensor in named.items():
        if not isinstance(name, str) or not tf.is_tensor(tensor):
            raise TypeError(f"got {name!r}: {tensor!r}, wanted a name and a tensor")
    return named


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """A function that makes a placeholder for each feature, which the server is fed as it is.

    Args:
      features: name to a tensor of the type and shape that the feature has.
      default_batch_size: rows of a batch; None: any.
    """
    specs = {
        name: (tensor.dtype, tf.TensorShape([default_batch_size]).concatenate(tensor.shape[1:]))
        for name, tensor in features.items()
    }

    def receive() -> ServingInputReceiver:
        inputs = {name: _tf1.placeholder(dtype, shape, name) for name, (dtype, shape) in specs.items()}
        return ServingInputReceiver(dict(inputs), inputs)

    return receive


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """A function that makes a placeholder for serialized `tf.train.Example`s, and parses them.

    Args:
      feature_spec: as for `tf.io.parse_example`.
      default_batch_size: rows of a batch; None: any.
    """

    def receive() -> ServingInputReceiver:
        serialized = _tf1.placeholder(tf.string, [default_batch_size], "input_example_tensor")
        return ServingInputReceiver(_tf1.parse_example(serialized, dict(feature_spec)), {"examples": serialized})

    return receive


class PredictOutput:
    """Outputs of any kind: a tensor or a dict of them."""

    def __init__(self, outputs: Tensors) -> None:
        self.outputs = _named(outputs, "output")

    def as_signature_def(self, receiver_tensors: dict[str, Any]) -> Any:
        """The signature from what is fed to the outputs."""
        return _saved_model.predict_signature_def(receiver_tensors, self.outputs)


class ClassificationOutput:
    """Classes and their scores; what is fed is one tensor of serialized examples."""

    def __init__(self, scores: tf.Tensor | None = None, classes: tf.Tensor | None = None) -> None:
        if scores is None and classes is None:
            raise ValueError("ClassificationOutput: scores and classes are None, wanted one of them at least")
        self.scores, self.classes = scores, classes

    def as_signature_def(self, receiver_tensors: dict[str, Any]) -> Any:
        """The signature from serialized examples to classes and scores."""
        return _saved_model.classification_signature_def(_examples(receiver_tensors), self.classes, self.scores)


class RegressionOutput:
    """A number for each row; what is fed is one tensor of serialized examples."""

    def __init__(self, value: tf.Tensor) -> None:
        self.value = value

    def as_signature_def(self, receiver_tensors: dict[str, Any]) -> Any:
        """The signature from serialized examples to numbers."""
        return _saved_model.regression_signature_def(_examples(receiver_tensors), self.value)


def _examples(receiver_tensors: dict[str, Any]) -> tf.Tensor:
    tensors = list(receiver_tensors.values())
    if len(tensors) != 1 or tensors[0].dtype != tf.string:
        raise ValueError(f"classification and regression want one tensor of strings to be fed, got {receiver_tensors}")
    return tensors[0]


def signatures(export_outputs: Mapping[str, Any] | None, predictions: Tensors, receiver: Any) -> dict[str, Any]:
    """The signatures of an exported model.

    Args:
      export_outputs: name to output; None: the predictions.
      predictions: of the model.
      receiver: a ServingInputReceiver.

    Raises:
      ValueError: several outputs, none of which has the name of the default.
    """
    outputs = dict(export_outputs) if export_outputs else {_DEFAULT_KEY: PredictOutput(predictions)}
    if _DEFAULT_KEY not in outputs:
        if len(outputs) > 1:
            raise ValueError(f"export_outputs has {sorted(outputs)}, wanted one of them to be {_DEFAULT_KEY!r}")
        outputs[_DEFAULT_KEY] = next(iter(outputs.values()))
    fed = _named(receiver.receiver_tensors, "input")
    result = {name: output.as_signature_def(fed) for name, output in outputs.items()}
    for alternative, tensors in (getattr(receiver, "receiver_tensors_alternatives", None) or {}).items():
        for name, output in outputs.items():
            result[f"{alternative}:{name}"] = output.as_signature_def(_named(tensors, "input"))
    return result


class Exporter:
    """Exports a model after an evaluation. Worker 0 calls it alone."""

    @property
    def name(self) -> str:
        """Of the directory below `export/` in the model's."""
        raise NotImplementedError

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> str | None:
        """Exports, or decides not to.

        Args:
          estimator: the `Estimator`.
          export_path: directory for exports of this name.
          checkpoint_path: what was evaluated.
          eval_result: name to value.
          is_the_final_export: whether training has ended.

        Returns:
          The directory of the export, or None.
        """
        raise NotImplementedError


class _SavedModelExporter(Exporter):
    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = None,
    ) -> None:
        if exports_to_keep is not None and exports_to_keep <= 0:
            raise ValueError(f"exporter {name!r}: exports_to_keep is {exports_to_keep}, wanted None or at least 1")
        self._name = name
        self._receive = serving_input_receiver_fn
        self._assets_extra = assets_extra
        self._as_text = as_text
        self._exports_to_keep = exports_to_keep
        self._last: tuple[str, str | None] | None = None  # a checkpoint, and where it was exported

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
            numbers = sorted(int(n.strip("/")) for n in tf.io.gfile.listdir(export_path) if n.strip("/").isdigit())
            for number in numbers[: -self._exports_to_keep]:
                tf.io.gfile.rmtree(os.path.join(export_path, str(number)))
        return exported


class FinalExporter(_SavedModelExporter):
    """Exports once, when training has ended."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text)

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> str | None:
        del eval_result
        return self._export(estimator, export_path, checkpoint_path) if is_the_final_export else None


class LatestExporter(_SavedModelExporter):
    """Exports after every evaluation, and keeps the last few.

    Args:
      name: of the directory.
      serving_input_receiver_fn: as for `Estimator.export_saved_model`.
      assets_extra: as for `Estimator.export_saved_model`.
      as_text: as for `Estimator.export_saved_model`.
      exports_to_keep: how many; None: all.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> str | None:
        del eval_result
        # The last evaluation's, and the end of training's.
        if not is_the_final_export or self._last is None or self._last[0] != checkpoint_path:
            self._last = (checkpoint_path, self._export(estimator, export_path, checkpoint_path))
        return self._last[1]


class BestExporter(_SavedModelExporter):
    """Exports where an evaluation is better than all before it in this run.

    Args:
      name: of the directory.
      serving_input_receiver_fn: as for `Estimator.export_saved_model`.
      compare_fn: `compare_fn(best_eval_result, current_eval_result)` tells whether the current is better; None: where
        its loss is lower.
      assets_extra: as for `Estimator.export_saved_model`.
      as_text: as for `Estimator.export_saved_model`.
      exports_to_keep: how many; None: all.
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
            raise ValueError(f"an evaluation gave {result!r}, wanted a 'loss' to compare")
    return bool(current_eval_result["loss"] < best_eval_result["loss"])
