"""Variables with a fixed number of rows, of which each rank holds a part."""

from typing import Any

from lockstep._src.compat.sok import variables
from lockstep._src.compat.sok.variables import DistributedVariable, LocalizedVariable

__all__ = ["DistributedVariable", "LocalizedVariable", "Variable"]


def Variable(*args: Any, **kwargs: Any) -> DistributedVariable | LocalizedVariable:  # noqa: N802
    """Makes a table of embeddings, [rows, D], whose rows are on the ranks of the job. All ranks make it together.

    To TensorFlow it is a variable of this rank's rows: `shape`, `numpy()`, gradients and optimizers are the rank's own.
    `sok.lookup_sparse` and `sok.all2all_dense_embedding` look up ids of the whole table.

    Args:
      *args: as for `tf.Variable`; the first is the initial value of the whole table: an array, a list or a tensor
        [rows, D], or [D] for one row.
      **kwargs: as for `tf.Variable`, and these:

        mode: None or "distributed": row i is on rank i mod the number of ranks. "localized:#": all rows are on rank #.
        shape: [rows, D], with an initializer.
        initializer: takes a shape and `dtype`, in place of an initial value. It is called for the whole table, and a
          rank draws its rows. Without a seed it gets one from the variable's name and TensorFlow's global seed, so rows
          do not depend on the number of ranks.

    Returns:
      The variable. `global_shape` is (rows, D); `target_gpu` is the rank that has the rows, or -1; `num_gpus` is the
      number of ranks; `key_map(ids)` gives the rank's local rows of ids that are its own.

    Raises:
      RuntimeError: before `sok.init`; or for a rank or mode that does not exist, which is a ValueError as well.
      ValueError: the shape does not fit a table, or there is neither a value nor an initializer with a shape.
    """
    return variables.make(*args, **kwargs)
