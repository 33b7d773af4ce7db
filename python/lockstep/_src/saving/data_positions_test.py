"""Training that resumes with different data raises an error that names the difference; in one worker."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from lockstep._src.scope import scope
from lockstep.data import ParquetDataset

ROWS = 40


def _write(path, values) -> None:
    pq.write_table(pa.table({"x": np.asarray(values, np.float32)}), path)


def _noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(ROWS)


def _train(folder, steps: int, saved: bool = True, batch_size: int = 4, **shuffle) -> list[float]:
    """Trains some more steps on the files `*.parquet`; returns the first value of each batch."""
    with tf.Graph().as_default(), scope(save_data_position=saved):
        dataset = ParquetDataset(f"{folder}/*.parquet", batch_size)
        if shuffle:
            dataset = dataset.shuffle(**shuffle)
        batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
        run = [batch["x"][0], tf.compat.v1.assign_add(tf.compat.v1.train.get_or_create_global_step(), 1)]
        with tf.compat.v1.train.MonitoredTrainingSession(checkpoint_dir=f"{folder}/checkpoints") as session:
            return [float(session.run(run)[0]) for _ in range(steps)]


def _gone(folder) -> None:
    (folder / "1.parquet").unlink()


def _new(folder) -> None:
    _write(folder / "5.parquet", _noise(5))


def _rewritten(folder) -> None:
    # The same number of rows and bytes as before, because these numbers cannot be compressed.
    size = (folder / "1.parquet").stat().st_size
    _write(folder / "1.parquet", _noise(9))
    assert (folder / "1.parquet").stat().st_size == size


def _damaged(folder) -> None:
    data = (folder / "1.parquet").read_bytes()
    (folder / "1.parquet").write_bytes(data[:-20])


@pytest.fixture
def folder(tmp_path):
    for i in range(3):
        _write(tmp_path / f"{i}.parquet", _noise(i))
    assert len(_train(tmp_path, 3)) == 3
    return tmp_path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_gone, r"(?s)other data: file '\S*/1.parquet' is no longer among the files \(3 files then, 2 files now\)"),
        (_new, r"other data: file '\S*/5.parquet' was not among the files \(3 files then, 4 files now\)"),
        (_rewritten, r"other data: file '\S*/1.parquet' has been rewritten"),
    ],
)
def test_other_files_are_an_error_that_names_the_checkpoint_and_the_file(folder, change, message):
    change(folder)
    with pytest.raises(tf.errors.FailedPreconditionError, match=message) as caught:
        _train(folder, 1)
    assert str(caught.value).startswith(f"{folder}/checkpoints/model.ckpt-3: worker 0 of 1 cannot continue its data")
    assert "LOCKSTEP_SAVE_DATA_POSITION=0" in str(caught.value)


@pytest.mark.parametrize("options", [{"batch_size": 5}, {"buffer_size": 3, "seed": 1}])
def test_another_pipeline_is_an_error(folder, options):
    with pytest.raises(tf.errors.OpError, match="model.ckpt-3: worker 0 of 1 cannot continue its data"):
        _train(folder, 1, **options)


def test_a_file_that_cannot_be_read_any_more_is_an_error_that_names_it(folder):
    _damaged(folder)
    with pytest.raises(tf.errors.OpError, match="1.parquet'"):
        _train(folder, 1)


def test_without_the_option_training_continues_with_the_new_data_from_its_beginning(folder):
    _gone(folder)
    expected = [float(np.float32(_noise(0)[4 * i])) for i in range(2)]
    assert _train(folder, 2, saved=False) == expected


def _warnings(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if " its first batch" in record.getMessage()]


def test_unused_positions_are_reported_once_with_the_way_to_use_them(folder, caplog):
    expected = [float(np.float32(_noise(0)[4 * i])) for i in range(2)]
    assert _train(folder, 2, saved=False) == expected
    (said,) = _warnings(caplog)
    assert said.startswith(
        f"{folder}/checkpoints/model.ckpt-3 has the position of each of 1 workers in 'OneShotIterator', but this job "
    )
    assert "start as many workers with LOCKSTEP_SAVE_DATA_POSITION=1" in said and "--restarts" in said


def test_a_checkpoint_without_positions_is_reported_if_they_are_wanted(folder, caplog):
    _train(folder, 2, saved=False)
    caplog.clear()
    assert _train(folder, 1) == [float(np.float32(_noise(0)[0]))]
    (said,) = _warnings(caplog)
    assert "model.ckpt-5 has no position of this graph's data for 1 workers (it has none at all)" in said


# Promise (launching.md): data that begins with its first batch is reported, in sessions and Keras.
def test_data_that_begins_again_is_reported_although_no_position_was_ever_saved(tmp_path, caplog):
    _write(tmp_path / "0.parquet", _noise(0))
    for _ in range(2):
        assert _warnings(caplog) == []
        assert _train(tmp_path, 2, saved=False) == [float(np.float32(_noise(0)[4 * i])) for i in range(2)]
    (said,) = _warnings(caplog)
    assert said.startswith(f"{tmp_path}/checkpoints/model.ckpt-2 has no position in the data: data begins with its ")
    assert "LOCKSTEP_SAVE_DATA_POSITION=1" in said and "--restarts" in said


def test_there_is_no_warning_if_data_resumes_or_there_is_none(folder, caplog):
    _train(folder, 1)
    with tf.Graph().as_default(), scope():
        step = tf.compat.v1.train.get_or_create_global_step()
        with tf.compat.v1.train.MonitoredTrainingSession(checkpoint_dir=f"{folder}/checkpoints") as session:
            assert session.run(step) == 4
    with tf.Graph().as_default(), scope(save_data_position=False):
        first = tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
        tf.compat.v1.train.get_or_create_global_step()
        with tf.compat.v1.train.MonitoredTrainingSession(checkpoint_dir=f"{folder}/other") as session:
            assert session.run(first) == 0
    assert _warnings(caplog) == []


def test_the_same_files_written_again_are_the_same_data(folder):
    expected = _noise(0).astype(np.float32)[[12, 16]].tolist()
    _write(folder / "1.parquet", _noise(1))
    assert _train(folder, 2) == expected


def test_data_without_a_position_is_an_error_that_names_the_option(tmp_path):
    def train(saved: bool) -> None:
        with tf.Graph().as_default(), scope(save_data_position=saved):
            dataset = tf.data.Dataset.from_generator(
                lambda: iter(range(9)), output_signature=tf.TensorSpec((), tf.int64)
            )
            number = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
            tf.compat.v1.train.get_or_create_global_step()
            with tf.compat.v1.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)) as session:
                assert session.run(number) == 0

    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"(?s)LOCKSTEP_SAVE_DATA_POSITION=0.*PyFunc is stateful"
    ):
        train(True)
    train(False)
