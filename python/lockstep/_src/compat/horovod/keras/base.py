"""The common base of callbacks for both generations of Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras.callbacks import Callback as Callback
else:
    Callback = object  # the façade adds the class of its own Keras


class KerasCallback(Callback):
    """Answers to questions that Keras 2 asks its callbacks, for classes of Keras 3 as well.

    The façade derives each callback from this class and from `Callback` of its own Keras, which sets `model` and
    `params`.
    """

    _supports_tf_logs = False

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False
