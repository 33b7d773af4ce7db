"""Each worker's share of any dataset, and what tells that the workers were given the same data.

Datasets that are not this library's know nothing of the job: without `shard` each worker trains on all rows, and the
job makes one worker's steps as often as it has workers. So the first batches of a training are compared. Each worker
makes a number of its batch and tells it to the others. In Keras' `fit` it is part of the exchange of the numbers of
rows; in sessions, of the run that takes the batch. Later batches are not looked at.
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
from lockstep._src.engine.context import context
from lockstep._src.graph.ancestry import ancestors

# An attribute of datasets that are a worker's share by themselves.
_IS_SHARE = "_lockstep_is_share"
# No string: exported graphs leave it out.
_BATCHES = ("lockstep", "first_batches")
# The number of a batch that is not compared.
NOTHING = 0
_BUCKETS = 2**62


def shard(dataset: Any) -> Any:
    """Returns this worker's share of a `tf.data.Dataset`: of W workers, worker r has the elements r, r + W, ...

    Call it on all workers, where the order of the elements is the same on all: before the dataset is shuffled, or
    behind a shuffle with a seed. Elements are rows, batches or file names, whatever the dataset has there:

        rows.apply(shard).shuffle(10_000).batch(512)      # each worker 512 rows a step, the job W·512
        tf.data.Dataset.list_files(pattern, shuffle=False).apply(shard).interleave(read_csv)   # each file read once

    Step s of W workers then trains on the rows of step s of one worker with batches of W·512. A batch is never cut: of
    a dataset of batches, each worker has every W-th. Shares differ by one element at most; where they end is up to the
    option `data_sync_drop_remainder`, as for all data. With one worker it is the dataset itself.

    Args:
      dataset: any but those of `lockstep.data` that read files, which are shares already.

    Returns:
      A dataset of the same elements' structure.

    Raises:
      TypeError: `dataset` is no `tf.data.Dataset`.
      ValueError: with several workers, if it is a share already, or is shuffled without a seed, so that each worker
        would cut its share out of another order.
    """
    if not isinstance(dataset, dataset_ops.DatasetV2):
        raise TypeError(f"shard: got {type(dataset).__name__}, wanted a tf.data.Dataset")
    if context.world_size == 1:
        return dataset
    if is_share(dataset):
        raise ValueError(
            "shard: the dataset is a worker's share already (ParquetDataset and its kin are, and what shard returns), "
            "and this would leave a part of a part; leave shard out, or read with partition_count=1"
        )
    if any(_is_unseeded_shuffle(part) for part in _parts(dataset)):
        raise ValueError(
            "shard: the dataset is shuffled without a seed, so each worker would take its share of another order: some "
            "rows twice, others never. Call shard before shuffle, or give shuffle (list_files) a seed"
        )
    return dataset.shard(context.world_size, context.rank)


def mark_share(dataset: Any) -> Any:
    """Returns the dataset, which is known as a worker's share from now on."""
    setattr(dataset, _IS_SHARE, True)
    return dataset


def is_share(data: Any) -> bool:
    """Returns whether data are a dataset of a part of all: by this library, or by `tf.data`'s `shard`."""
    return isinstance(data, dataset_ops.DatasetV2) and any(
        getattr(part, _IS_SHARE, False)
        or (isinstance(part, shard_op._ShardDataset) and tf.get_static_value(part._num_shards) != 1)
        for part in _parts(data)
    )


def _parts(dataset: Any) -> Iterator[Any]:
    """Yields the dataset and those that it is made of; none that only a function of it makes."""
    yield dataset
    # One with the methods of TensorFlow 1 names the inputs of the dataset that it stands for.
    wrapped = [dataset._dataset] if isinstance(dataset, dataset_ops.DatasetV1Adapter) else dataset._inputs()
    for part in wrapped:
        yield from _parts(part)


def _is_unseeded_shuffle(dataset: Any) -> bool:
    if not isinstance(dataset, shuffle_op._ShuffleDataset):
        return False
    return all(tf.get_static_value(seed) == 0 for seed in (dataset._seed, dataset._seed2))


def fingerprint(batch: Any) -> int:
    """Returns a number that is made of all values of an eager batch, of any structure; never `NOTHING`."""
    digest = hashlib.blake2b(digest_size=7)
    for tensor in tf.nest.flatten(batch, expand_composites=True):
        if tf.is_tensor(tensor) and _has_values(tensor):
            array = tensor.numpy()
            digest.update(f"{tensor.dtype.name}{tensor.shape}".encode())
            digest.update(repr(array.tolist()).encode() if tensor.dtype == tf.string else array.tobytes())
    return 1 + int.from_bytes(digest.digest(), "little")


def _fingerprint_op(batch: Any) -> tf.Tensor:
    """Returns such a number in a graph: a scalar int64, which has nothing to do with the number of an eager batch."""
    tensors = [t for t in tf.nest.flatten(batch, expand_composites=True) if tf.is_tensor(t) and _has_values(t)]
    texts = [tf.io.serialize_tensor(tensor) for tensor in tensors]
    numbers = [tf.strings.as_string(tf.strings.to_hash_bucket_fast(text, _BUCKETS)) for text in texts]
    return 1 + tf.strings.to_hash_bucket_fast(tf.strings.join(numbers, ","), _BUCKETS)


def _has_values(tensor: Any) -> bool:
    return tensor.dtype not in (tf.resource, tf.variant)


def compare(batches: Sequence[Any]) -> None:
    """Warns on worker 0 where the first batches of all workers are the same, once in a process.

    Args:
      batches: of each batch that a step takes the numbers of all workers, [W]; `NOTHING` of a worker that had none, or
        whose data are a share. Where one differs over the workers, the others are taken to be meant for all.
    """
    if context.rank == 0 and all(NOTHING not in numbers and len(set(map(int, numbers))) == 1 for numbers in batches):
        warn_of_equal_batches()


@functools.cache
def warn_of_equal_batches() -> None:
    """Logs the warning when it is first called."""
    tf.compat.v1.logging.warning(
        "The first batch is the same on all %d workers: each trains on all of the data, and every row is trained %d "
        "times. Give each worker its share: lockstep.data.shard(dataset), before the dataset is shuffled, or a "
        "lockstep.data.ParquetDataset.",
        context.world_size,
        context.world_size,
    )


def note(iterator: Any, taken_by: tf.Operation, batch: Any) -> None:
    """Has sessions of the job compare the first batch that they take of this iterator.

    Args:
      iterator: whose attribute `is_share` says, when a session begins, that its data need no comparison.
      taken_by: the operation that takes the batch.
      batch: of any structure. One that is taken in a loop or a branch, whose values no other run may ask for, is not
        compared.
    """
    if tf.executing_eagerly() or taken_by._get_control_flow_context() is not None:
        return
    tf.compat.v1.add_to_collection(_BATCHES, (iterator, taken_by, batch))


class FirstBatchHook(tf.compat.v1.train.SessionRunHook):
    """Compares the first batches of a session's training: those of the first run that takes any, and no others."""

    stops_alike = True

    def begin(self) -> None:
        """Builds the comparisons, while the graph may grow. They run where a run fetches them, and only then."""
        self._pending = {}
        for iterator, taken_by, batch in tf.compat.v1.get_collection(_BATCHES):
            # All workers build the same, whatever data they have.
            number = tf.constant(NOTHING, tf.int64) if iterator.is_share else _fingerprint_op(batch)
            self._pending[taken_by] = ordered.allgather(number[tf.newaxis], name="first_batches")

    def before_run(self, run_context: Any) -> Any:
        """Asks along with a run that takes batches."""
        if not self._pending:
            return None
        run = set(ancestors(ending.fetched(run_context), ending.fed(run_context)))
        compared = [comparison for taken_by, comparison in self._pending.items() if taken_by in run]
        return tf.compat.v1.train.SessionRunArgs(compared) if compared else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Says what was found."""
        del run_context
        if run_values.results:
            self._pending = {}
            compare(run_values.results)
