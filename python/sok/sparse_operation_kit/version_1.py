"""The functions and classes of SOK 1.x that have layers and their own savers; SOK 2.x does not have them."""

from typing import Any

import tensorflow as tf

from lockstep._src.compat.sok import native_optimizers as _native_optimizers
from lockstep._src.compat.sok import saver as _saver
from lockstep._src.compat.sok import version_1 as _version_1
from lockstep._src.compat.sok.layers import All2AllDenseEmbedding, DistributedEmbedding
from lockstep._src.compat.sok.tf_embedding import TFDistributedEmbedding

__all__ = [
    "All2AllDenseEmbedding",
    "DistributedEmbedding",
    "GraphKeys",
    "Init",
    "OptimizerScope",
    "Saver",
    "TFDistributedEmbedding",
    "get_embedding",
    "split_embedding_variable_from_others",
]


def Init(**kwargs: Any) -> tf.Tensor:  # noqa: N802
    """Starts SOK 1.x. All ranks call it, once, and before they make layers.

    The ranks come from a strategy in whose scope this is called, with one replica in each process; else from
    Horovod, if the program has imported it, or from the launcher; else this process is the only rank.

    Args:
      **kwargs: these arguments, by name; others have no effect, and are named in a warning:

        global_batch_size: the examples of a step on all ranks together, a multiple of the number of ranks.
        seed: the seed of tables whose initializer has none. All ranks use rank 0's. None: one from TensorFlow's global
          seed.

    Returns:
      The text "OK": in a graph, a tensor.

    Raises:
      KeyError: there is no `global_batch_size`.
      ValueError: the batch is not a multiple of the number of ranks, or the ranks have different ones.
      RuntimeError: a second call, or another strategy.
    """
    return _version_1.init(**kwargs)


def split_embedding_variable_from_others(variables: list | tuple) -> tuple[list, list]:
    """Returns tables and other variables.

    Args:
      variables: variables of TensorFlow, SOK or Keras, such as `model.trainable_variables`.

    Returns:
      (tables, others), both in the order of `variables`. The gradients of tables are sums over the ranks already; those
      of the others are for Horovod or the strategy.

    Raises:
      ValueError: the argument is not a list or tuple.
    """
    return _version_1.split(variables)


class OptimizerScope(_native_optimizers.OptimizerScope):
    """A scope in which optimizers of TensorFlow 1, Keras 2 and Keras 3 update tables.

    They compute what they compute for an ordinary variable with the same rows. A dynamic table is updated by its rows;
    optimizers other than SGD, Adagrad, Adam, FTRL and RMSprop do not change rows without a gradient.

    Args:
      trainable_variables: the variables, a list or tuple; variables that are not tables have no effect.

    Raises:
      RuntimeError: the argument is not a list or tuple.
    """


def get_embedding(name: str, constructor: Any = None, **kwargs: Any) -> Any:
    """Returns the layer of this name in the current graph; if there is none, makes it.

    Args:
      name: a name that the program chooses.
      constructor: makes the layer, such as `sok.All2AllDenseEmbedding`.
      **kwargs: the arguments of `constructor`; they have no effect if the layer exists.

    Raises:
      ValueError: the layer does not exist, and there is no constructor.
    """
    return _version_1.get_embedding(name, constructor, kwargs)


class GraphKeys(_version_1.GraphKeys):
    """The names of collections in graphs of TensorFlow 1: of the layers' handles, and of optimizers."""


class Saver(_saver.Saver):
    """Writes tables of layers to files, and reads them on any number of ranks. All ranks call its methods together.

    A table has the files `<m_var_name>_keys.file`, int64 or uint32, and `<m_var_name>_values.file`, float32, without
    headers. Tables have the names EmbeddingVariable, EmbeddingVariable_1, ... in the order in which they are made.
    Slots of optimizers are not saved.

    Under eager execution a method works at once. In a graph it returns an operation. Each of several operations must
    wait for the one before (`tf.control_dependencies`), so that all ranks run them in the same order.
    """

    def dump_to_file(self, embedding_variable: Any, filepath: Any) -> tf.Tensor:
        """Writes keys and rows of a table. The files get their names when both are complete.

        Args:
          embedding_variable: the table of a layer.
          filepath: a folder that exists.

        Returns:
          The text "OK".

        Raises:
          TypeError: another variable.
          FileNotFoundError: there is no such folder; on all ranks.
          OSError: a file cannot be written; on all ranks.
        """
        return super().dump_to_file(embedding_variable, filepath)

    def restore_from_file(self, embedding_variable: Any, filepath: Any) -> tf.Tensor:
        """Reads rows of a table that any number of ranks wrote. Rows of other keys keep their values.

        Args:
          embedding_variable: the table of a layer.
          filepath: the folder.

        Returns:
          The text "OK".

        Raises:
          TypeError: another variable.
          FileNotFoundError: a file is missing; on all ranks.
          ValueError: a file is damaged, or has too many keys, or has a key that the table cannot have; the message has
            its path. It is raised on all ranks, and nothing has changed.
        """
        return super().restore_from_file(embedding_variable, filepath)

    def load_embedding_values(self, embedding_variable: Any, tensors: Any) -> tf.Tensor:
        """Sets the rows of the keys 0 to n - 1. All ranks pass the same values.

        Args:
          embedding_variable: the table of a layer.
          tensors: the whole table [n, D], row j for key j; or a list of its parts.

        Returns:
          The text "OK".

        Raises:
          TypeError: another variable.
          ValueError: a tensor is empty or has another shape, or a rank would have too many keys.
          tf.errors.InvalidArgumentError: n is more than the table may have.
        """
        return super().load_embedding_values(embedding_variable, tensors)
