"""A worker of crash_moments_test.py: saves checkpoint after checkpoint, and dies at a named point of a save."""

import os
import resource
import signal
from collections.abc import Callable
from typing import NamedTuple

import tensorflow
import tensorflow.compat.v1 as tf
from tensorflow.python.checkpoint import checkpoint_management
from tensorflow.python.lib.io import file_io

import hybridbackend.tensorflow as hb
from lockstep._src.saving import chain, shard_saveables, table_saveables
from lockstep._src.saving.incremental import IncrementalSaver
from lockstep._src.tables import dynamic
from lockstep.testing.crash_points import crash_at

_gfile = tensorflow.io.gfile
KEYS, DIM = 600, 4
# Each worker passes "tables: part written" and "shards: part written" more than once.
PART_ROWS = 16
PIECE_BYTES = PART_ROWS * DIM * 4
# Every slice of a worker, the state file and the chain are longer.
SLICE_BYTES, TEXT_BYTES = 3000, 30
# The number of saves before the one in which a worker dies. With increments: full, increment, increment, full.
SAVES = {"full": 1, "increment": 2, "next full": 3}


class Point(NamedTuple):
    """A point of a save.

    Attributes:
      arm: called between two saves; lets this process die at the point in the next one.
      passed_by: ranks that pass the point.
      announced: whether the saved checkpoint is the last one of its folder by then.
      signal: the signal that ends the process.
      workers: the sizes of jobs that have the point.
    """

    arm: Callable[[], None]
    passed_by: tuple[int, ...] = (0,)
    announced: bool = False
    signal: int = signal.SIGKILL
    workers: tuple[int, ...] = (1, 2)


def die():
    """Ends this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def _die_in_a_file(bytes_):
    """Lets the system end this process, by SIGXFSZ, in the first write beyond the `bytes_`-th byte of a file."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, resource.RLIM_INFINITY))


def _at(name, passes=1):
    return lambda: crash_at(name, passes)


def _at_call(owner, name, path="", *, after=False, act=die):
    """Acts before or after a call of a function; with `path`, only if an argument ends with it."""

    def arm():
        original = getattr(owner, name)

        def replaced(*args, **kwargs):
            found = any(str(arg).endswith(path) for arg in [*args, *kwargs.values()])
            if found and not after:
                act()
            result = original(*args, **kwargs)
            if found and after:
                act()
            return result

        setattr(owner, name, replaced)

    return arm


def _in_text(owner, name, path=""):
    return _at_call(owner, name, path, act=lambda: _die_in_a_file(TEXT_BYTES))


def _data_files():
    """Returns the number of a checkpoint's data files."""
    return hb.context.world_size


_BOTH = (0, 1)
_SAVE = {
    "before the first byte": Point(_at_call(_gfile, "makedirs"), _BOTH),
    "in a slice": Point(lambda: _die_in_a_file(SLICE_BYTES), _BOTH, signal=signal.SIGXFSZ),
    "in the rows of a sharded table": Point(_at("shards: part written", 7), _BOTH, workers=(2,)),
    "in the rows of a dynamic table": Point(_at("tables: part written", 7), _BOTH),
    "behind a slice": Point(_at("save: file written"), _BOTH),
    "between slices and index": Point(_at("save: all written")),
    "behind the index, before it is synced": Point(_at("commit: merged")),
    "before the renames": Point(_at("commit: synced")),
    "between the renames": Point(_at("commit: file renamed")),
    "before the index's rename": Point(lambda: crash_at("commit: file renamed", _data_files())),
}
_COMMITTED = {
    "behind the index's rename": Point(lambda: crash_at("commit: file renamed", _data_files() + 1)),
    "behind the sync of the folder": Point(_at("commit: place synced")),
    "when nothing is left aside": Point(_at("commit: aside removed")),
}
_STATE = {
    "before the state file": Point(_at_call(file_io, "atomic_write_string_to_file", "checkpoint")),
    "in the state file": Point(_in_text(file_io, "atomic_write_string_to_file", "checkpoint"), signal=signal.SIGXFSZ),
    "before the state file's rename": Point(_at_call(file_io, "rename", "checkpoint")),
    "behind the state file": Point(
        _at_call(file_io, "atomic_write_string_to_file", "checkpoint", after=True), announced=True
    ),
    "in the removal of an old checkpoint": Point(
        _at_call(checkpoint_management, "_delete_file_if_exists", ".index", after=True), announced=True
    ),
}
_CHAIN = {
    "before the chain": Point(_at_call(chain.Chain, "write")),
    "in the chain": Point(_in_text(chain.Chain, "write"), signal=signal.SIGXFSZ),
    "before the chain's rename": Point(_at_call(os, "replace", "chain.json")),
    "behind the chain": Point(_at_call(chain.Chain, "write", after=True), announced=True),
}
POINTS = {
    "full": {**_SAVE, **_COMMITTED, **_STATE},
    "increment": {**_SAVE, **_COMMITTED, **_CHAIN},
    # The full checkpoint is complete and announced; increments shall build on it.
    "next full": {
        **{name: point._replace(announced=True) for name, point in _CHAIN.items()},
        "in the removal of increments": Point(_at_call(_gfile, "remove", ".index", after=True), announced=True),
    },
}


def build(kind):
    """Returns a dynamic table, a static and a replicated variable, a step that adds 1 to all of them, and a saver."""
    option = dynamic.EmbeddingVariableOption(record_frequency=True, record_version=True)
    table = dynamic.get_embedding_variable("keys", DIM, initializer=tf.zeros_initializer(), ev_option=option)
    with hb.embedding_scope():
        static = tf.get_variable("static", [KEYS, DIM], initializer=tf.zeros_initializer(), use_resource=True)
    dense = tf.get_variable("dense", [KEYS], initializer=tf.zeros_initializer(), use_resource=True)
    ids = tf.range(KEYS, dtype=tf.int64)
    rows = [tf.reduce_sum(tf.nn.embedding_lookup(params, ids)) for params in (table, static)]
    optimizer = tf.train.MomentumOptimizer(-1.0, 0.0)  # its slot is the gradient: 1
    step = optimizer.minimize(sum(rows) + tf.reduce_sum(dense), var_list=[table, static, dense])
    saver = tf.train.Saver(max_to_keep=1 if kind == "full" else 3)
    return table, static, dense, step, saver if kind == "full" else IncrementalSaver(saver, full_every=3)


def work(folder, kind, point, killed):
    """Saves after steps 1, 2, ...; in the last of these saves a worker dies. The others try one more step."""
    tf.disable_v2_behavior()
    table_saveables.PART_ROWS = PART_ROWS
    shard_saveables.PIECE_BYTES = PIECE_BYTES
    with tf.Graph().as_default(), hb.scope(), tf.Session() as session:
        *_, step, saver = build(kind)
        session.run(tf.global_variables_initializer())
        for i in range(1, SAVES[kind] + 2):
            session.run(step)
            if i > SAVES[kind] and hb.context.rank == killed:
                POINTS[kind][point].arm()
            saver.save(session, f"{folder}/model.ckpt", i)
        session.run(step)
