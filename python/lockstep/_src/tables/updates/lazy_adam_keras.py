"""Adam that does not change rows without a gradient in a step, for Keras 3.

This module imports Keras 3, which some versions of TensorFlow do not have.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from lockstep._src.collectives.slices import summed_by_row, with_values


@keras.saving.register_keras_serializable("lockstep")
class LazyAdam(keras.optimizers.Adam):
    """`keras.optimizers.Adam` whose sparse gradients change only the rows that they name.

    In every step, Keras' Adam decays the moments in all rows and moves all weights by their moments, which is a
    pass over the whole table. Here, a row and its moments do not change in a step without a gradient for it. So this is
    a different optimizer, and the cost of a step depends on the number of its rows. It is equivalent to `LazyAdam` of
    TensorFlow Addons, with Adam's arguments. Dense gradients are applied as in Adam; only they support `amsgrad`.
    """

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Applies a gradient; the slices of one row are summed first."""
        if not isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return
        if self.amsgrad:
            raise NotImplementedError(f"{self.name}: amsgrad is not implemented for sparse gradients")
        dtype = variable.dtype
        summed = summed_by_row(with_values(gradient, tf.cast(gradient.values, dtype)))
        rows, grad = summed.indices, summed.values
        step = tf.cast(self.iterations + 1, dtype)
        powers = [tf.pow(tf.cast(beta, dtype), step) for beta in (self.beta_1, self.beta_2)]
        rate = tf.cast(learning_rate, dtype) * tf.sqrt(1 - powers[1]) / (1 - powers[0])
        index = self._get_variable_index(variable)
        m, v = (slots[index]._value for slots in (self._momentums, self._velocities))
        old_m, old_v = tf.gather(m, rows), tf.gather(v, rows)
        new_m = old_m + (grad - old_m) * (1 - self.beta_1)
        new_v = old_v + (tf.square(grad) - old_v) * (1 - self.beta_2)
        m.scatter_update(tf.IndexedSlices(new_m, rows))
        v.scatter_update(tf.IndexedSlices(new_v, rows))
        getattr(variable, "_value", variable).scatter_sub(
            tf.IndexedSlices(rate * new_m / (tf.sqrt(new_v) + self.epsilon), rows)
        )
