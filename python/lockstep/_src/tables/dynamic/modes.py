"""The difference between lookups that train and other lookups.

A lookup in training adds new keys, counts keys, and has a gradient. It returns the initial row for a new key, and the
default row for a key that a filter has not admitted.

Lookups in evaluation, in prediction and in an exported model do not change the table. They return a key's
row. All keys without a row read the default row: keys that training has never seen, that are not admitted yet, or that
were evicted. Each element of the default row is `default_value_no_permission` of the table's options, 0 by default. If
a table has no filter and its rows begin with a constant, this constant is used instead.

A lookup is decided when it is built (in a graph or a `tf.function`) or run. It is one of evaluation in these cases:

- It is inside of `evaluating()`.
- The context's option `mode` is 'eval' or 'infer', as in `EvaluationHook`, and in `evaluate`, `predict` and exports of
  estimators.
- A layer of Keras 3 is being called, and not for training: in `evaluate` and `predict` of a model, or with
  `training=False`. If the call has no `training` argument, it trains if a `tf.GradientTape` records.
- The table is not trainable, or belongs to a layer that is not.

All other lookups are lookups in training.
"""

from __future__ import annotations

import contextlib
import sys

from tensorflow.python.eager import record as tape

from lockstep._src.engine.context import context
from lockstep._src.engine.thread_value import ThreadValue

_evaluating = ThreadValue(False)


def evaluating(here: bool = True) -> contextlib.AbstractContextManager[None]:
    """Makes lookups in dynamic tables inside the block neither change them nor have a gradient; `False` reverts it."""
    return _evaluating.holding(here)


def is_training() -> bool:
    """Returns whether a lookup that is made now is a lookup in training."""
    if _evaluating.value or context.options.mode != "train":
        return False
    called_for = _keras_call_is_for()
    return called_for is None or called_for


def is_training_of_keras() -> bool:
    """Returns whether a layer of Keras 3 is being called for training."""
    return bool(_keras_call_is_for())


def _keras_call_is_for() -> bool | None:
    """Returns whether the current call of a layer of Keras 3 is for training; None outside of such calls."""
    layer = sys.modules.get("keras.src.layers.layer")
    state = sys.modules.get("keras.src.backend.common.global_state")
    if layer is None or state is None:
        return None
    call = state.get_global_attribute("current_call_ctx")
    if call is None:
        return None
    training = getattr(call, "training", None)
    return tape.could_possibly_record() if training is None else bool(training)
