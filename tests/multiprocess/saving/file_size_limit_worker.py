"""A worker of file_size_limit_test.py: trains, and at one moment receives a file size limit."""

import resource

import tensorflow.compat.v1 as tf
from tensorflow.python.checkpoint import checkpoint_management

import hybridbackend.tensorflow as hb
from lockstep._src.engine import background
from lockstep._src.tables import dynamic as embedding

DIM = 16


def train(folder, kind, ranks, limit):
    """Takes 4 steps, each of which adds 1 to all values, and saves after the 2nd and the 4th.

    Args:
      folder: the folder of the checkpoints.
      kind: 'static' or 'dynamic': the table with many rows. 'increments': as 'dynamic', with increments after each
        step. 'small': no table with many rows. 'state': as 'small', with a limit for the state file. 'events': as
        'small'; the limit is the present length of the summary file, which cannot grow.
      ranks: workers with the limit.
      limit: in bytes; a negative one holds from before the session, others from the 3rd step on.
    """
    tf.disable_v2_behavior()
    long = {"static": "static", "dynamic": "dynamic", "increments": "dynamic"}.get(kind)
    rows = {name: 4000 if name == long else 10 for name in ("static", "dynamic")}
    # TensorFlow flushes all files of the process when it writes a checkpoint, and drops the errors of other files.
    # Beside training, that may be the summary file.
    with tf.Graph().as_default(), hb.scope(background_saves=kind != "events"):
        with hb.embedding_scope():
            static = tf.get_variable("static", [rows["static"], DIM], initializer=tf.zeros_initializer())
        dynamic = embedding.get_embedding_variable("dynamic", DIM, initializer=tf.zeros_initializer())
        step = tf.train.get_or_create_global_step()
        seen = [
            tf.reduce_sum(tf.nn.embedding_lookup(table, tf.range(rows[name], dtype=tf.int64)))
            for name, table in (("static", static), ("dynamic", dynamic))
        ]
        train_op = tf.train.GradientDescentOptimizer(-1.0).minimize(sum(seen), global_step=step)
        periods = {"save_incremental_checkpoint_steps": 1} if kind == "increments" else {}
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            limited = hb.context.rank in ranks
            if limited and limit < 0:
                _limit(-limit)
            with tf.train.MonitoredTrainingSession(
                checkpoint_dir=folder, save_checkpoint_steps=2, save_summaries_steps=None, **periods
            ) as session:
                for i in range(4):
                    if i == 2:
                        background.finish()  # the checkpoint of step 2
                    if limited and limit > 0 and i == 2:
                        limiting = {"state": _limit_state_file, "events": lambda _: _limit_events(folder)}
                        limiting.get(kind, _limit)(limit)
                    session.run(train_op)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _limit(bytes_):
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, resource.RLIM_INFINITY))


def _limit_events(folder):
    tf.summary.FileWriterCache.get(folder).flush()
    (file,) = tf.gfile.Glob(f"{folder}/events*")
    _limit(tf.gfile.Stat(file).length)


def _limit_state_file(bytes_):
    update = checkpoint_management.update_checkpoint_state_internal

    def limited(*args, **kwargs):
        _limit(bytes_)
        update(*args, **kwargs)

    checkpoint_management.update_checkpoint_state_internal = limited
