"""Each worker's share of any dataset, and a check that the workers were not given the same data.

Other libraries' datasets know nothing of the job: without `shard`, each worker trains on all rows, and W workers train
on every row W times. Therefore the workers compare their first batches. Each worker computes a fingerprint of its batch
and sends it to the others. In Keras' `fit`, the fingerprint travels with the numbers of rows; in sessions, it is
exchanged in the run that takes the batch. Later batches are not compared. Keras shuffles arrays, so the first rows of
the arrays take the place of their first batch.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops, shard_op, shuffle_op

from lockstep._src.collectives import ordered
from lockstep._src.data import ending
from lockstep._src.engine import apart
from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep._src.graph.ancestry import ancestors

# The attribute that marks datasets that already are a worker's share.
_IS_SHARE = "_lockstep_is_share"
# The key is not a string, so that exported graphs omit the collection.
_BATCHES = ("lockstep", "first_batches")
# The fingerprint of a batch that is not compared.
NOTHING = 0
_BUCKETS = 2**62


def shard(dataset: Any) -> Any:
    """Returns this worker's share of a `tf.data.Dataset`: with W workers, rank r gets the elements r, r + W, ...

    Call it on all workers, at a place where the order of the elements is the same on all workers: before the dataset is
    shuffled, or after a shuffle with a seed. Elements may be rows, batches or file names:

        rows.apply(shard).shuffle(10_000).batch(512)      # each worker 512 rows a step, the job W·512
        tf.data.Dataset.list_files(pattern, shuffle=False).apply(shard).interleave(read_csv)   # each file read once

    In the first example, step s of W workers trains on the rows of step s of one worker with batches of W·512. A batch
    is never cut: each worker gets every W-th batch of a dataset of batches. The sizes of shares differ by at most one
    element. As for all data, the option `data_sync_drop_remainder` decides when training ends. With one worker, the
    result is the dataset itself.

    Args:
      dataset: any dataset except file readers of `lockstep.data`, because these are already shares.

    Returns:
      A dataset whose elements have the same structure.

    Raises:
      TypeError: `dataset` is not a `tf.data.Dataset`.
      ValueError: there are several workers, and the dataset is already a share, or is shuffled without a seed. Each
        worker would then take its share from a different order.
    """
    if not isinstance(dataset, dataset_ops.DatasetV2):
        raise TypeError(f"shard: got {type(dataset).__name__}, wanted a tf.data.Dataset")
    if context.world_size == 1:
        return dataset
    if is_share(dataset):
        raise ValueError(
            "shard: the dataset is already a worker's share (as are ParquetDataset, similar datasets and the result of "
            "shard). Each worker would read a part of its part: leave shard out, or read with partition_count=1"
        )
    if any(_is_unseeded_shuffle(part) for part in _parts(dataset)):
        raise ValueError(
            "shard: the dataset is shuffled without a seed, so each worker would take its share from another order: "
            "some rows would be read twice, others never. Shard before shuffle, or give shuffle (list_files) a seed"
        )
    share = dataset.shard(context.world_size, context.rank)
    # Only where it is needed: other programs that run this graph, such as servers of tf.data, may lack our operation.
    if not apart.watches_reads():
        return share
    share = _Share(share)
    return dataset_ops.DatasetV1Adapter(share) if isinstance(dataset, dataset_ops.DatasetV1) else share


class _Share(dataset_ops.UnaryUnchangedStructureDataset):
    """A dataset with the elements of its input, which reports their reads to the engine (`apart.py`)."""

    def __init__(self, input_dataset: Any) -> None:
        variant = ops.lockstep_share_dataset(input_dataset._variant_tensor, **input_dataset._flat_structure)
        super().__init__(input_dataset, variant)


def mark_share(dataset: Any) -> Any:
    """Marks the dataset, whose operation reports reads to the engine, as a worker's share, and returns it."""
    setattr(dataset, _IS_SHARE, True)
    apart.watches_reads()
    return dataset


def is_share(data: Any) -> bool:
    """Returns whether `data` is a dataset of a part of all rows, made by this library or by `tf.data`'s `shard`."""
    return isinstance(data, dataset_ops.DatasetV2) and any(
        getattr(part, _IS_SHARE, False)
        or (isinstance(part, shard_op._ShardDataset) and tf.get_static_value(part._num_shards) != 1)
        for part in _parts(data)
    )


def _parts(dataset: Any) -> Iterator[Any]:
    """Yields the dataset and all its inputs, but not datasets that a function of it creates, as in `interleave`."""
    yield dataset
    # A dataset with the methods of TensorFlow 1 is a wrapper around another dataset.
    wrapped = [dataset._dataset] if isinstance(dataset, dataset_ops.DatasetV1Adapter) else dataset._inputs()
    for part in wrapped:
        yield from _parts(part)


def _is_unseeded_shuffle(dataset: Any) -> bool:
    if not isinstance(dataset, shuffle_op._ShuffleDataset):
        return False
    return all(tf.get_static_value(seed) == 0 for seed in (dataset._seed, dataset._seed2))


def fingerprint(batch: Any) -> int:
    """Returns a hash of all values of an eager batch of any structure; it is never `NOTHING`."""
    digest = hashlib.blake2b(digest_size=7)
    for tensor in tf.nest.flatten(batch, expand_composites=True):
        if tf.is_tensor(tensor) and _has_values(tensor):
            array = tensor.numpy()
            digest.update(f"{tensor.dtype.name}{tensor.shape}".encode())
            digest.update(repr(array.tolist()).encode() if tensor.dtype == tf.string else array.tobytes())
    return 1 + int.from_bytes(digest.digest(), "little")


def _fingerprint_op(batch: Any) -> tf.Tensor:
    """Returns a hash of a batch in a graph, as an int64 scalar; it differs from the `fingerprint` of the same batch."""
    tensors = [t for t in tf.nest.flatten(batch, expand_composites=True) if tf.is_tensor(t) and _has_values(t)]
    texts = [tf.io.serialize_tensor(tensor) for tensor in tensors]
    numbers = [tf.strings.as_string(tf.strings.to_hash_bucket_fast(text, _BUCKETS)) for text in texts]
    return 1 + tf.strings.to_hash_bucket_fast(tf.strings.join(numbers, ","), _BUCKETS)


def _has_values(tensor: Any) -> bool:
    return tensor.dtype not in (tf.resource, tf.variant)


def compare(batches: Sequence[Any]) -> None:
    """Warns on worker 0, once in a process, if the first batches of all workers are the same.

    Args:
      batches: for each batch that a step takes, the fingerprints [W] of all workers; `NOTHING` for a worker without a
        batch, or whose data is a share. If one of these batches differs between workers, there is no warning: the
        program then gives the others to all workers on purpose.
    """
    if context.rank == 0 and all(NOTHING not in numbers and len(set(map(int, numbers))) == 1 for numbers in batches):
        warn_of_equal_batches()


@functools.cache
def warn_of_equal_batches() -> None:
    """Logs the warning at the first call."""
    tf.compat.v1.logging.warning(
        "The first batch is the same on all %d workers: each trains on all of the data, and every row is trained %d "
        "times. Give each worker its share: use lockstep.data.shard(dataset) before the dataset is shuffled, a "
        "lockstep.data.ParquetDataset, or for arrays x[lockstep.rank()::lockstep.size()].",
        context.world_size,
        context.world_size,
    )


def note(iterator: Any, taken_by: tf.Operation, batch: Any) -> None:
    """Registers a batch in the graph, so that sessions of the job compare the first batch of this iterator.

    Args:
      iterator: the iterator. If its attribute `is_share` is true when a session begins, its data is not compared.
      taken_by: the operation that takes the batch.
      batch: the batch, of any structure. A batch that is taken in a loop or a branch is not compared, because a session
        cannot fetch its values.
    """
    if tf.executing_eagerly() or taken_by._get_control_flow_context() is not None:
        return
    tf.compat.v1.add_to_collection(_BATCHES, (iterator, taken_by, batch))


class FirstBatchHook(tf.compat.v1.train.SessionRunHook):
    """Compares the batches of the first run of a session that takes any, and no later ones."""

    stops_alike = True

    def begin(self) -> None:
        """Builds the comparisons before the graph is finalized. They run only if a run fetches them."""
        self._pending = {}
        for iterator, taken_by, batch in tf.compat.v1.get_collection(_BATCHES):
            # All workers build the same comparisons, whether or not their data is a share.
            number = tf.constant(NOTHING, tf.int64) if iterator.is_share else _fingerprint_op(batch)
            self._pending[taken_by] = ordered.allgather(number[tf.newaxis], name="first_batches")

    def before_run(self, run_context: Any) -> Any:
        """Adds the comparisons of the batches that the run takes to its fetches."""
        if not self._pending:
            return None
        run = set(ancestors(ending.fetched(run_context), ending.fed(run_context)))
        compared = [comparison for taken_by, comparison in self._pending.items() if taken_by in run]
        return tf.compat.v1.train.SessionRunArgs(compared) if compared else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Warns if the batches were the same on all workers."""
        del run_context
        if run_values.results:
            self._pending = {}
            compare(run_values.results)
