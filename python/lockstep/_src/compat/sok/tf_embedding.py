"""`TFDistributedEmbedding` of SOK 1.x: a layer over one table whose rows are on all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from lockstep._src.compat.sok import any_keras, layers, lookups, version_1
from lockstep._src.compat.sok.variables import DistributedVariable


class TFDistributedEmbedding(layers.TableLayer):
    """A layer that returns a row for each key of a fixed vocabulary. All ranks make it and call it together.

    Row k is on rank k mod N; so no rank needs memory for the whole table, and `broadcast_variables` does nothing.
    Letters: N ranks, D the dimension of a row.

    Args:
      vocabulary_size: the number of rows of the table.
      embedding_vec_size: D.
      initializer: the name of an initializer of Keras, or the whole table, [vocabulary_size, D].
      comm_options: not used: the ranks exchange rows by this library's operations.
      **kwargs: arguments of `tf.keras.layers.Layer`.

    Call arguments:
      inputs: keys of any shape, int32 or int64, from 0 to vocabulary_size - 1.
      training: not used.

    Output: [..., D] float32. The gradient of the table is the sum over all ranks' losses.

    Raises:
      ValueError: the table has another shape.
      tf.errors.InvalidArgumentError: a key is out of range.
    """

    __module__ = "sparse_operation_kit"

    def __init__(
        self,
        vocabulary_size: int,
        embedding_vec_size: int,
        initializer: Any = "GlorotNormal",
        comm_options: Any = None,
        **kwargs: Any,
    ) -> None:
        del comm_options
        super().__init__(**kwargs)
        self._sizes = (int(vocabulary_size), int(embedding_vec_size))
        self._initializer = initializer
        version_1.ensure_started()
        if isinstance(initializer, str):
            start = {"initializer": any_keras.keras_of_program().initializers.get(initializer), "shape": self._sizes}
        else:
            value = initializer if hasattr(initializer, "shape") else np.asarray(initializer)
            if tuple(value.shape) != self._sizes:
                raise ValueError(
                    "The shape of initializer must be [vocabulary_size, embedding_vec_size]: got "
                    f"{tuple(value.shape)}, wanted {self._sizes}"
                )
            start = {"initial_value": value}
        self._hold(DistributedVariable(**start, dtype=tf.float32, name="EmbeddingWeights"))

    @property
    def embedding_weights(self) -> DistributedVariable:
        """The variable of this rank's rows. In Keras 3, `trainable_variables` has a variable of Keras that holds it."""
        return vars(self)["_sok_table"]

    def broadcast_variables(self) -> None:
        """Does nothing: each row is on one rank."""

    def call(self, inputs: Any, training: Any = None) -> tf.Tensor:
        """Returns a row for each key, [..., D]."""
        del training
        return lookups.all2all_dense_embedding(self.embedding_weights, inputs)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Returns the shape [..., D]."""
        return (*input_shape, self._sizes[1])

    def compute_output_spec(self, inputs: Any, training: Any = None) -> Any:
        """Returns Keras 3's description of the output."""
        return self._compute_output_spec(self.compute_output_shape(inputs.shape))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments; an initializer that is a table is not among them.

        Raises:
          NotImplementedError: the initializer is a table.
        """
        if not isinstance(self._initializer, str):
            raise NotImplementedError(f"layer '{self.name}': get_config wants an initializer with a name, got a table")
        return {
            **super().get_config(),
            "vocabulary_size": self._sizes[0],
            "embedding_vec_size": self._sizes[1],
            "initializer": self._initializer,
        }
