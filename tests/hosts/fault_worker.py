"""The worker of jobs in which something goes wrong: trains, saves, evaluates and exports something small.

    python fault_worker.py FOLDER MOMENT LATE MISBEHAVIOUR RANK ANSWERS          (command() returns this line)

A moment is one of MOMENTS. Each rank writes FOLDER/there.<rank> when it reaches the moment, and stays in it until
FOLDER/go exists. Only then does rank LATE come to the rendezvous, or to its first step; all others wait for it there.
The other moments are repeated. A misbehaving rank misbehaves in the moment.

Every step adds 1 to every value of the model, so after step s every value is s.
"""

import sys
import time
from pathlib import Path

MOMENTS = "rendezvous", "first step", "step", "checkpoint", "evaluation", "export"
ROWS, DIM = 501, 4


class Moments:
    """The moments that this rank has reached, and how long it stays in one."""

    def __init__(self, folder, moment, rank, late, misbehaves):
        self._folder, self._moment, self._rank = folder, moment, rank
        self._late, self._misbehaves = late, misbehaves

    def reach(self, name):
        """Enters a moment in which all ranks wait for one."""
        if name == self._moment:
            self._mark()
            self._misbehave()
            while self._rank == self._late and not self.is_over():
                time.sleep(0.01)

    def repeat(self, name, body, agree):
        """Repeats a moment: calls `body`, then `agree` with whether to end, until `agree` returns true."""
        body()
        if name == self._moment:
            self._mark()
            while not agree(self.is_over()):
                self._misbehave()
                body()

    def is_over(self):
        return (self._folder / "go").exists()

    def _mark(self):
        (self._folder / f"there.{self._rank}").touch()

    def _misbehave(self):
        if self._misbehaves == "raise":
            raise RuntimeError("a mistake in the user's program")
        if self._misbehaves == "exit":
            sys.exit(0)


def model(tf, hb):
    """Returns a dense variable, and all rows of a table."""
    with hb.embedding_scope():
        table = tf.get_variable("table", [ROWS, DIM], initializer=tf.zeros_initializer(), use_resource=True)
    dense = tf.get_variable("dense", [ROWS], initializer=tf.zeros_initializer(), use_resource=True)
    return dense, tf.nn.embedding_lookup(table, tf.range(ROWS))


def command(folder, moment, late, misbehaves=("", -1), answers=1):
    """Returns the words of a command that does `work`."""
    return [sys.executable, __file__, str(folder), moment, str(late), *map(str, misbehaves), str(answers)]


def work(folder, moment, late, misbehaves=("", -1), answers=1):
    """Runs one rank of the job; the head of the file says how.

    Args:
      folder: the folder of all ranks.
      moment: of MOMENTS.
      late: the rank for which the others wait.
      misbehaves: a misbehaviour, and the rank that shows it.
      answers: how many numbers each rank sends to all others in each step.
    """
    import tensorflow.compat.v1 as tf

    import hybridbackend.tensorflow as hb
    from lockstep._src.collectives import ordered

    tf.disable_v2_behavior()
    rank = hb.context.rank
    folder = Path(folder)
    moments = Moments(folder, moment, rank, late, misbehaves[0] if misbehaves[1] == rank else "")
    moments.reach("rendezvous")
    hb.context.ensure_initialized()

    with tf.Graph().as_default(), hb.scope(), tf.Session() as session:
        dense, rows = model(tf, hb)
        # The gradients' mean over the ranks is 1.
        loss = tf.reduce_sum(dense) + tf.reduce_sum(rows)
        step = tf.train.GradientDescentOptimizer(-1.0).minimize(loss, tf.train.get_or_create_global_step())
        asked = tf.placeholder(tf.int32, [])
        given = ordered.allgather(tf.fill([answers], asked), name="agree")
        # The engine keeps the memory of earlier exchanges. This one makes it ask for new memory.
        agreed = tf.reduce_max(tf.cast(given, tf.int64))
        with hb.scope(mode="eval"):
            auc, update = hb.metrics.auc(tf.constant([0, 1, 1]), tf.sigmoid(rows[:3, 0]), name="auc")
        saver = tf.train.Saver(max_to_keep=3)
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])

        def train():
            session.run([step, agreed], {asked: 0})

        def save():
            train()
            saver.save(session, str(folder / "checkpoints" / "model.ckpt"), tf.train.get_global_step())

        def evaluate():
            session.run(update)
            session.run(auc)

        def export():
            if rank == 0:
                path = tf.train.latest_checkpoint(str(folder / "checkpoints"))
                hb.train.export(str(folder / "exports"), path, signature)

        def signature():
            ids = tf.placeholder(tf.int64, [None])
            return tf.saved_model.predict_signature_def({"ids": ids}, {"rows": tf.gather(model(tf, hb)[1], ids)})

        def agree(is_over):
            return session.run(agreed, {asked: int(is_over)})

        moments.reach("first step")
        train()
        save()
        for name, body in (("step", train), ("checkpoint", save), ("evaluation", evaluate), ("export", export)):
            moments.repeat(name, body, agree)
        save()
        seen = session.run(rows)
    assert (seen == seen[0, 0]).all()
    (folder / f"done.{rank}").write_text(str(int(seen[0, 0])))


if __name__ == "__main__":
    FOLDER, MOMENT, LATE, MISBEHAVIOUR, RANK, ANSWERS = sys.argv[1:]
    work(FOLDER, MOMENT, int(LATE), (MISBEHAVIOUR, int(RANK)), int(ANSWERS))
