"""Dynamic tables that begin with the rows of a checkpoint, in all forms of TensorFlow's map."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.eager import context as tf_context

from lockstep._src.saving import checkpoint as _savers  # noqa: F401, registers them
from lockstep._src.saving.incremental import IncrementalSaver
from lockstep._src.saving.table_saveables_test import slots_here
from lockstep._src.tables import dynamic

DIM = 2
IDS, WORDS = np.array([5, -7, 2**40]), np.array([b"cat", b"dog"])


class Program:
    """Two dynamic tables and a variable in a scope, with an optimizer."""

    def __init__(self, scope, trained=True, increments=False):
        option = dynamic.EmbeddingVariableOption(evict_option=dynamic.GlobalStepEvict(1000), record_frequency=True)
        with tf.variable_scope(scope):
            self.user = dynamic.get_embedding_variable("user", DIM, initializer=tf.ones_initializer(), ev_option=option)
            self.word = dynamic.get_embedding_variable("word", DIM, tf.string, initializer=tf.ones_initializer())
            self.dense = tf.get_variable("dense", [2], initializer=tf.zeros_initializer(), use_resource=True)
        self.tables = (self.user, self.word)
        rows = [tf.nn.embedding_lookup(self.user, IDS), tf.nn.embedding_lookup(self.word, WORDS)]
        loss = sum(tf.reduce_sum(tf.square(each)) for each in rows) + tf.reduce_sum(tf.square(self.dense - 3.0))
        if trained:
            self.train = tf.train.AdagradOptimizer(0.5).minimize(loss, tf.train.get_or_create_global_step())
        self.saver = IncrementalSaver() if increments else tf.train.Saver()

    def rows(self, session):
        """Returns the rows of both tables by key, and the variable."""
        found = [session.run(table.export()) for table in self.tables]
        tables = [dict(zip(each.keys.tolist(), each.values.tolist(), strict=True)) for each in found]
        return [*tables, session.run(self.dense).tolist()]

    def slots(self, session, names=None):
        """Returns the values of the optimizer's slots, or of slots of these names."""
        found = session.run([table.export_slots(*(names or slots_here())) for table in self.tables])
        return {float(value) for slots in found for slot in slots for value in slot.ravel()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns the folder of a checkpoint of the scope 'old', and its values."""
    folder = tmp_path_factory.mktemp("saved")
    with tf.Graph().as_default(), tf.Session() as session:
        program = Program("old")
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(program.train)
        program.saver.save(session, f"{folder}/model.ckpt", 3)
        rows, slots = program.rows(session), program.slots(session)
        names = slots_here()
    assert len(rows[0]) == 3 and len(rows[1]) == 2 and min(slots) > 1
    return str(folder), rows, slots, names


@pytest.fixture(autouse=True)
def _graph():
    with tf.Graph().as_default():
        yield


# The scope of the program and the map, for each form.
FORMS = {
    "root": ("old", lambda p: {"/": "/"}),
    "root to scope": ("new/old", lambda p: {"/": "new/"}),
    "scope": ("new", lambda p: {"old/": "new/"}),
    "names": ("new", lambda p: {f"old/{name}": f"new/{name}" for name in ("user", "word", "dense")}),
    "variables": ("new", lambda p: {"old/user": p.user, "old/word": [p.word], "old/dense": p.dense}),
    "pairs": ("new", lambda p: [("old/user", p.user), ("old/word", "new/word"), ("old/dense", p.dense)]),
}


# Promise (checkpoints.md): `init_from_checkpoint` and warm starts give dynamic tables their rows, on any number of
# workers.
@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_the_map_give_tables_their_rows(form, saved):
    folder, rows, slots, _ = saved
    scope, assignment = FORMS[form]
    program = Program(scope)
    tf.train.init_from_checkpoint(folder, assignment(program))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert program.rows(session) == rows
        if "scope" in form or "root" in form:
            assert program.slots(session) == slots  # as variables' slots are variables of the scope
        else:
            with pytest.raises(tf.errors.InvalidArgumentError, match="has no slot"):
                program.slots(session)
            session.run(program.train)


def test_before_an_optimizer_a_scope_has_no_slots(saved):
    folder, rows, *_ = saved
    program = Program("old", trained=False)
    tf.train.init_from_checkpoint(folder, {"/": "/"})
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert program.rows(session) == rows
        with pytest.raises(tf.errors.InvalidArgumentError, match="has no slot"):
            program.slots(session, saved[-1])


def test_steps_and_counts_begin_anew(saved):
    program = Program("old")
    tf.train.init_from_checkpoint(saved[0], {"old/user": program.user})
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = session.run(program.user.export())
        assert found.freqs.tolist() == [0] * 3 and found.versions.tolist() == [0] * 3
        assert session.run(program.user.clock())[0] == 0


def test_a_restore_does_not_need_the_checkpoint_of_the_initial_rows(saved, tmp_path):
    program = Program("old")
    path = tf.train.latest_checkpoint(saved[0])
    tf.train.init_from_checkpoint(path, {"old/user": "old/user"})
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(program.train)
        own = saver.save(session, f"{tmp_path}/own.ckpt")
        rows = program.rows(session)
    reads = [op.inputs[0] for op in tf.get_default_graph().get_operations() if op.type == "LockstepRestoreTables"]
    (of_init,) = [prefix for prefix in reads if prefix.op.type == "Const"]
    with tf.Session() as session:
        saver.restore(session, own)
        assert program.rows(session) == rows
        # The checkpoint of the initial rows is read by the initializer only.
        with pytest.raises(tf.errors.OpError, match="nowhere"):
            session.run(program.user.initializer, {of_init: b"nowhere"})
        saver.restore(session, own)


# Promise (checkpoints.md): `init_from_checkpoint` and warm starts give dynamic tables their rows, on any number of
# workers.
@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (lambda p: {"old/": "alone/"}, "table 'alone/other' cannot begin.*: dynamic table 'old/other' is missing; the"),
        (lambda p: {"old/users": p.user}, "'old/users' is missing; the checkpoint has no such name, and the dynamic"),
        (
            lambda p: {"old/dense": p.user},
            r"has a variable 'old/dense' of shape \[2\], and the dynamic tables old/user",
        ),
        (lambda p: {"old/word": p.user}, "'old/word' has keys string and rows .2, 2., the model int64"),
        (lambda p: {"old/user": [p.user, p.word]}, "got the list new/user.*new/word.*, wanted one dynamic table"),
    ],
)
def test_maps_that_do_not_fit_are_refused_by_name(assignment, message, saved):
    program = Program("new")
    dynamic.get_embedding_variable("alone/other", DIM)
    with pytest.raises(ValueError, match=message):
        tf.train.init_from_checkpoint(saved[0], assignment(program))


def test_another_dimension_and_an_increment_are_refused(saved, tmp_path):
    table = dynamic.get_embedding_variable("wide", 3)
    with pytest.raises(ValueError, match=r"'old/user' has keys int64 and rows \[3, 2\], the model int64 and \[3, 3\]"):
        tf.train.init_from_checkpoint(saved[0], {"old/user": table})
    with tf.Graph().as_default(), tf.Session() as session:
        program = Program("old", increments=True)
        session.run(tf.global_variables_initializer())
        program.saver.track(session)
        paths = []
        for _ in range(2):
            session.run(program.train)
            paths.append(program.saver.save(session, f"{tmp_path}/model.ckpt", session.run(tf.train.get_global_step())))
        with pytest.raises(ValueError, match="'old/user' is incremental there; wanted a full checkpoint"):
            tf.train.init_from_checkpoint(paths[1], {"old/user": program.user})


def test_an_eager_table_gets_the_rows_at_once(saved):
    folder, rows, *_ = saved
    with tf_context.eager_mode():
        table = dynamic.get_embedding_variable("of_keras", DIM)
        tf.train.init_from_checkpoint(folder, {"old/user": table})
        found = table.export()
        assert dict(zip(found.keys.numpy().tolist(), found.values.numpy().tolist(), strict=True)) == rows[0]
