"""The warning for workers that train apart: who is warned of what, once. Each case runs in workers of its own."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import lockstep
import lockstep.named
from lockstep._src.engine.context import context
from lockstep._src.tables.dynamic import get_embedding_variable
from lockstep.testing.workers import call_workers

pytestmark = [pytest.mark.workers, pytest.mark.oldest]
SAID = "lockstep: the job has 2 workers, and "


def _rows():
    return tf.data.Dataset.from_tensor_slices(np.arange(8)).apply(lockstep.data.shard).batch(2).prefetch(2)


def read_share(path):
    """Reads the share of a dataset twice; batching and prefetching do not hide it."""
    del path
    rows = _rows()
    return [[int(x) for batch in rows for x in batch] for _ in range(2)]


def read_parquet(path):
    """Reads the share of a file."""
    return [int(x) for batch in lockstep.data.ParquetDataset(path, 2).map(lambda batch: batch["x"]) for x in batch]


def read_parquet_in_a_session(path):
    """Reads a share in TensorFlow 1's way."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        value = tf.compat.v1.data.make_one_shot_iterator(lockstep.data.ParquetDataset(path, 2)).get_next()["x"]
        return session.run(value).tolist()


def read_all(path):
    """Reads whole data, which is not a share, and makes a share that nothing reads."""
    _rows()
    lockstep.rank(), lockstep.size(), lockstep.stats()
    return sum(1 for _ in lockstep.data.ParquetDataset(path, 2, partition_count=1))


def peek(path):
    """Reads a batch before the scope, and all of them inside."""
    del path
    rows = _rows()
    next(iter(rows))
    with lockstep.scope():
        return [int(x) for batch in rows for x in batch]


def enter_first(path):
    """Makes the data before the scope, and reads it inside and behind it; makes a table inside."""
    rows, batches = _rows(), lockstep.data.ParquetDataset(path, 2)
    with lockstep.scope():
        get_embedding_variable("user", 4)
        inside = sum(1 for _ in rows) + sum(1 for _ in batches)
    return inside, sum(1 for _ in rows) + sum(1 for _ in batches)


def exchange_first(path):
    """Reads data of a program that exchanges by itself."""
    del path
    lockstep.init()
    return float(sum(lockstep.allreduce(tf.cast(batch, tf.float32))[0] for batch in _rows()))


def start_named_job(path):
    """Reads data of a program that exchanges by names, as programs with Horovod's interface do."""
    del path
    lockstep.named.start()
    return sum(1 for _ in _rows())


def make_table(path):
    """Makes tables, and reads data."""
    del path
    for name in ("user", "item"):
        get_embedding_variable(name, 4)
    return sum(1 for _ in _rows())


def make_detached_table(path):
    """Makes a table in a graph that no worker of the job runs, as an export does."""
    del path
    with context.detached(), tf.Graph().as_default():
        get_embedding_variable("user", 4)


def export(path):
    """Exports a model of Keras outside of a scope."""
    import keras

    from lockstep.keras import export

    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    export(model, path + ".exported", verbose=False)


@pytest.fixture(name="path", scope="module")
def _path(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "a.parquet"
    pq.write_table(pa.table({"x": range(8)}), path)
    return str(path)


def _outcomes(function, path, size=2):
    outcomes = call_workers(function, size, path, check=False)
    assert all(outcome.succeeded for outcome in outcomes), [outcome.output for outcome in outcomes]
    return outcomes, [line for outcome in outcomes for line in outcome.output.splitlines() if "lockstep: " in line]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (read_share, "its data is read outside of lockstep.scope(), while this worker has not joined the others"),
        (read_parquet, "its data is read outside"),
        (read_parquet_in_a_session, "its data is read outside"),
        (peek, "its data is read outside"),
        (make_table, "the table 'user' is made outside"),
        pytest.param(export, "lockstep.keras.export is called outside", marks=pytest.mark.newest_only),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_worker_0_warns_once_of_a_program_that_has_not_joined(path, function, text):
    outcomes, said = _outcomes(function, path)
    assert len(said) == 1 and said[0].startswith(SAID + text), said
    assert "Build the model and call fit inside of `with lockstep.scope():`" in said[0]
    assert "lockstep: " not in outcomes[1].output


@pytest.mark.parametrize("function", [read_all, enter_first, exchange_first, start_named_job, make_detached_table])
def test_other_programs_are_not_warned(path, function):
    assert _outcomes(function, path)[1] == []


@pytest.mark.parametrize("function", [read_share, read_parquet, make_table])
def test_one_worker_is_not_warned(path, function):
    assert _outcomes(function, path, size=1)[1] == []


def test_shares_have_the_rows_of_tf_datas_shard(path):
    outcomes, _ = _outcomes(read_share, path)
    assert [outcome.value for outcome in outcomes] == [[list(range(rank, 8, 2))] * 2 for rank in range(2)]


def share_after_joining(path):
    """Makes a share of data in the scope."""
    del path
    with lockstep.scope():
        share = lockstep.data.shard(tf.data.Dataset.range(4))
        return type(share).__name__, [int(x) for x in share]


def test_a_share_that_is_made_in_the_scope_is_tf_datas_own(path):
    outcomes, _ = _outcomes(share_after_joining, path)
    assert [outcome.value for outcome in outcomes] == [("_ShardDataset", [rank, 2 + rank]) for rank in range(2)]


def save_and_restore(path):
    """Saves the position in a share, and resumes there. Returns the rows before and behind, and the length."""
    iterator = iter(_rows())
    before = next(iterator).numpy().tolist()
    saved = tf.train.Checkpoint(iterator=iterator).save(f"{path}.position-{context.rank}")
    again = iter(_rows())
    tf.train.Checkpoint(iterator=again).restore(saved)
    return before, [batch.numpy().tolist() for batch in again], len(_rows())


def test_a_share_has_a_position_and_a_length(path):
    outcomes, _ = _outcomes(save_and_restore, path)
    assert [outcome.value for outcome in outcomes] == [([r, 2 + r], [[4 + r, 6 + r]], 2) for r in range(2)]
