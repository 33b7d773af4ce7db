"""Adam that does not change rows without a gradient in a step, for graphs of TensorFlow 1."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class LazyAdamOptimizer(tf.compat.v1.train.AdamOptimizer):
    """`tf.compat.v1.train.AdamOptimizer` whose sparse gradients change only the rows that they name.

    In every step, TensorFlow's Adam decays the moments in all rows and moves all weights by their moments, which is a
    pass over the whole table. Here, a row and its moments do not change in a step without a gradient for it. So this
    is a different optimizer, and the cost of a step depends on the number of its rows. It is equivalent to
    `tf.contrib.opt.LazyAdamOptimizer`, with Adam's arguments and names of slots. Dense gradients are applied as in
    Adam.
    """

    def _resource_apply_sparse(self, grad: tf.Tensor, var: Any, indices: tf.Tensor) -> Any:
        return self._apply_to_rows(grad, var, indices)

    def _apply_sparse(self, grad: tf.IndexedSlices, var: Any) -> Any:
        return self._apply_to_rows(grad.values, var, grad.indices)

    def _apply_to_rows(self, grad: tf.Tensor, var: Any, indices: tf.Tensor) -> Any:
        """Applies [U, ...] gradients of distinct rows."""
        parameters = (self._lr_t, self._beta1_t, self._beta2_t, self._epsilon_t, *self._get_beta_accumulators())
        lr, beta1, beta2, epsilon, beta1_power, beta2_power = (tf.cast(p, var.dtype.base_dtype) for p in parameters)
        rate = lr * tf.sqrt(1 - beta2_power) / (1 - beta1_power)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        rows_of_m = beta1 * tf.gather(m, indices) + (1 - beta1) * grad
        rows_of_v = beta2 * tf.gather(v, indices) + (1 - beta2) * tf.square(grad)
        step = rate * rows_of_m / (tf.sqrt(rows_of_v) + epsilon)
        updates = [(m, "scatter_update", rows_of_m), (v, "scatter_update", rows_of_v), (var, "scatter_sub", step)]
        return tf.group(*(getattr(x, scatter)(tf.IndexedSlices(rows, indices)) for x, scatter, rows in updates))
