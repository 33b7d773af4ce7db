"""Dynamic tables in checkpoints of one worker: the content, read by stock TensorFlow, and the restored values."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep._src.saving import table_saveables as saved_tables
from lockstep._src.scope import scope
from lockstep._src.tables import dynamic

DIM = 5


@pytest.fixture(autouse=True)
def fresh_graph(monkeypatch):
    # Few rows per piece, so that all tensors have several slices.
    monkeypatch.setattr(saved_tables, "PART_ROWS", 7)
    with tf.Graph().as_default():
        yield


def option(**options):
    return dynamic.EmbeddingVariableOption(record_frequency=True, record_version=True, **options)


def make(name="user", dim=DIM, **options):
    ev_option = option(**{k: v for k, v in options.items() if k != "key_dtype" and k != "value_dtype"})
    types = {k: options[k] for k in ("key_dtype", "value_dtype") if k in options}
    return dynamic.get_embedding_variable(name, dim, ev_option=ev_option, **types)


def train(table, optimizer):
    """Returns a placeholder for ids, and a step that trains on them; a row's loss is the sum of its squares."""
    ids = tf.placeholder(table.key_dtype if table.key_dtype == tf.string else tf.int64, [None])
    step = tf.train.get_or_create_global_step()
    loss = tf.reduce_sum(tf.square(tf.cast(tf.nn.embedding_lookup(table, ids), tf.float32)))
    return ids, optimizer.minimize(loss, global_step=step)


def slots_of(path, name="user"):
    """Returns the names of the slots in a checkpoint."""
    return [slot.decode() for slot in tf.train.load_checkpoint(path).get_tensor(f"{name}-slots")]


def slots_here():
    """Returns the names of the slots that the optimizers of the current graph request."""
    updates = [op for op in tf.get_default_graph().get_operations() if op.type == "LockstepSparseUpdate"]
    return sorted({name.decode() for op in updates for name in op.get_attr("slot_names")})


def contents(session, table, *slots):
    """Returns all values that the table has for each key."""
    keys, *rest = session.run([*table.export(), *table.export_slots(*slots)])
    return {key: [np.asarray(part[i]).tolist() for part in rest] for i, key in enumerate(keys.tolist())}


def stored(path, name, *slots):
    """Returns the same values from a checkpoint, as stock TensorFlow reads them."""
    reader = tf.train.load_checkpoint(path)
    names = [f"{name}-{part}" for part in ("keys", "values", "versions", "freqs")] + [f"{name}/{s}" for s in slots]
    keys, *rest = [reader.get_tensor(tensor) for tensor in names]
    assert len(set(keys.tolist())) == len(keys)
    return {key: [part[i].tolist() for part in rest] for i, key in enumerate(keys.tolist())}


def trained(tmp_path, optimizer=None, steps=4, **options):
    """Trains a table, and saves it; returns the checkpoint's prefix, and the table's values."""
    table = make(**options)
    ids, step = train(table, optimizer or tf.train.AdagradOptimizer(0.1))
    rng = np.random.default_rng(7)
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(steps):
            batch = rng.integers(-40, 40, 50)
            session.run(step, {ids: [str(i) for i in batch] if table.key_dtype == tf.string else batch})
        path = saver.save(session, f"{tmp_path}/model.ckpt")
        return path, contents(session, table, *slots_of(path))


@pytest.mark.parametrize("in_scope", [False, True])
@pytest.mark.parametrize("key_dtype", [tf.int64, tf.string])
def test_plain_tensorflow_reads_the_tables_values_and_they_are_restored(tmp_path, in_scope, key_dtype):
    def both():
        path, had = trained(tmp_path, key_dtype=key_dtype)
        assert len(had) > 40
        assert stored(path, "user", *slots_of(path)) == had
        with tf.Graph().as_default(), tf.Session() as session:
            table = make(key_dtype=key_dtype)
            # Restores into a session without initialized variables.
            tf.train.Saver([table]).restore(session, path)
            assert contents(session, table, *slots_of(path)) == had
            # Restores over existing rows.
            session.run(table.insert(["1000" if key_dtype == tf.string else 1000], [[1.0] * DIM]))
            tf.train.Saver({"user": table}).restore(session, path)
            assert contents(session, table, *slots_of(path)) == had

    if in_scope:
        with scope():
            both()
    else:
        both()


def test_training_resumes_as_if_it_had_not_stopped(tmp_path):
    path, _ = trained(tmp_path)
    batches = np.random.default_rng(8).integers(-60, 60, [3, 50])
    after = []
    for restored in (True, False):
        with tf.Graph().as_default(), tf.Session() as session:
            table = make()
            ids, step = train(table, tf.train.AdagradOptimizer(0.1))
            if restored:
                tf.train.Saver().restore(session, path)
            else:
                session.run(tf.global_variables_initializer())
                rng = np.random.default_rng(7)
                for _ in range(4):
                    session.run(step, {ids: rng.integers(-40, 40, 50)})
            for batch in batches:
                session.run(step, {ids: batch})
            after.append(contents(session, table, *slots_of(path)))
    assert after[0] == after[1]


@pytest.mark.parametrize("value_dtype", [tf.float16, tf.bfloat16])
def test_rows_of_16_bits_are_stored_as_floats_without_loss(tmp_path, value_dtype):
    path, had = trained(tmp_path, value_dtype=value_dtype)
    assert tf.train.load_checkpoint(path).get_tensor("user-values").dtype == np.float32
    assert {k: np.float32(v[0]).tolist() for k, v in stored(path, "user", *slots_of(path)).items()} == {
        k: np.float32(v[0]).tolist() for k, v in had.items()
    }
    with tf.Graph().as_default(), tf.Session() as session:
        table = make(value_dtype=value_dtype)
        tf.train.Saver().restore(session, path)
        assert contents(session, table, *slots_of(path)) == had


def test_slots_of_another_optimizer_start_with_their_initial_values(tmp_path):
    path, had = trained(tmp_path, tf.train.MomentumOptimizer(0.1, 0.9))
    with tf.Graph().as_default(), tf.Session() as session:
        table = make()
        ids, step = train(table, tf.train.AdagradOptimizer(0.1, initial_accumulator_value=0.25))
        saver = tf.train.Saver([v for v in tf.global_variables()])
        saver.restore(session, path)
        assert contents(session, table, *slots_of(path)) == had
        key = next(iter(had))
        session.run(step, {ids: [key]})
        now = contents(session, table, *slots_here())
        gradient = 2 * np.float32(had[key][0])
        np.testing.assert_allclose(now[key][3], 0.25 + gradient**2, rtol=1e-6)
        others = [k for k in had if k != key]
        assert {tuple(now[k][3]) for k in others} == {(0.25,) * DIM}


def test_slots_may_have_another_initial_value_than_when_they_were_saved(tmp_path):
    path, had = trained(tmp_path)
    with tf.Graph().as_default(), tf.Session() as session:
        table = make()
        ids, step = train(table, tf.train.AdagradOptimizer(0.1, initial_accumulator_value=3.0))
        tf.train.Saver().restore(session, path)
        session.run(step, {ids: [12345]})
        now = contents(session, table, *slots_of(path))
        assert min(now[12345][3]) >= 3.0
        assert {k: v for k, v in now.items() if k != 12345} == had


def counted(tmp_path, filter_option):
    """Saves a table after a key was seen three times, two keys twice, and one once; returns path and contents."""
    with tf.Session() as session:
        table = make(filter_option=filter_option)
        ids, step = train(table, tf.train.AdagradOptimizer(0.1))
        saver = tf.train.Saver()
        session.run(tf.global_variables_initializer())
        for batch in ([1, 2, 3, 4], [1, 2, 3], [1]):
            session.run(step, {ids: batch})
        return saver.save(session, f"{tmp_path}/model.ckpt"), contents(session, table)


def test_counts_of_keys_continue(tmp_path):
    path, had = counted(tmp_path, dynamic.CounterFilter(3))
    reader = tf.train.load_checkpoint(path)
    assert reader.get_tensor("user-keys").tolist() == [1] == list(had)
    waiting = zip(reader.get_tensor("user-keys_filtered"), reader.get_tensor("user-freqs_filtered"), strict=True)
    assert sorted(waiting) == [(2, 2), (3, 2), (4, 1)]
    with tf.Graph().as_default(), tf.Session() as session:
        table = make(filter_option=dynamic.CounterFilter(3))
        ids, step = train(table, tf.train.AdagradOptimizer(0.1))
        tf.train.Saver().restore(session, path)
        assert session.run(table.get_frequency([1, 2, 3, 4, 5])).tolist() == [3, 2, 2, 1, 0]
        session.run(step, {ids: [2, 4]})
        assert sorted(contents(session, table)) == [1, 2]


@pytest.mark.parametrize(("wanted", "keys"), [(0, [1, 4]), (9, [1])], ids=["all keys", "a higher limit"])
def test_a_table_that_admits_all_ignores_the_counts_and_a_higher_limit_keeps_admitted_keys(tmp_path, wanted, keys):
    path, _ = counted(tmp_path, dynamic.CounterFilter(3))
    with tf.Graph().as_default(), tf.Session() as session:
        table = make(filter_option=dynamic.CounterFilter(wanted))
        ids, step = train(table, tf.train.AdagradOptimizer(0.1))
        tf.train.Saver().restore(session, path)
        session.run(step, {ids: [4]})
        assert sorted(contents(session, table)) == keys


def test_counters_of_a_bloom_filter_are_restored(tmp_path):
    bloom = {"filter_option": dynamic.CBFFilter(3, max_element_size=1000, false_positive_probability=0.001)}
    with tf.Session() as session:
        table = make(**bloom)
        ids, step = train(table, tf.train.AdagradOptimizer(0.1))
        saver = tf.train.Saver()
        session.run(tf.global_variables_initializer())
        for batch in ([1, 2, 3], [1, 2], [1]):
            session.run(step, {ids: batch})
        path = saver.save(session, f"{tmp_path}/model.ckpt")
    assert tf.train.load_checkpoint(path).get_tensor("user-filter").dtype == np.uint8
    with tf.Graph().as_default(), tf.Session() as session:
        table = make(**bloom)
        ids, step = train(table, tf.train.AdagradOptimizer(0.1))
        tf.train.Saver().restore(session, path)
        session.run(step, {ids: [2, 3]})
        assert sorted(contents(session, table)) == [1, 2]
    with tf.Graph().as_default(), tf.Session() as session:
        make(filter_option=dynamic.CBFFilter(3, max_element_size=2000, false_positive_probability=0.001))
        with pytest.raises(tf.errors.InvalidArgumentError, match="Bloom filter is for 1000 keys"):
            tf.train.Saver().restore(session, path)


def test_an_empty_table_is_saved_and_restored(tmp_path):
    path, had = trained(tmp_path, steps=0)
    assert had == {} == stored(path, "user")
    with tf.Graph().as_default(), tf.Session() as session:
        table = make()
        tf.train.Saver().restore(session, path)
        assert contents(session, table) == {}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dim": 6}, tf.errors.InvalidArgumentError, r"its rows are float\[\d+,5\], the table's float\[\d+,6\]"),
        ({"key_dtype": tf.string}, tf.errors.InvalidArgumentError, r"its keys are int64\[\d+\], the table's string"),
        ({"name": "item"}, tf.errors.NotFoundError, "table 'item': it has no tensor 'item-keys'"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(tmp_path, change, error, message):
    path, _ = trained(tmp_path)
    with tf.Graph().as_default(), tf.Session() as session:
        make(**change)
        with pytest.raises(error, match=f"(?s)checkpoint {path}.*{message}"):
            tf.train.Saver().restore(session, path)


def test_a_file_without_its_keys_and_a_damaged_one_are_refused(tmp_path):
    path, _ = trained(tmp_path)
    from lockstep._src.saving import bundle

    names = dict(tf.train.list_variables(path))
    bundle.copy_tensors(path, set(names) - {"user-values"}, f"{tmp_path}/part")
    with tf.Graph().as_default(), tf.Session() as session:
        make()
        saver = tf.train.Saver()
        with pytest.raises(tf.errors.NotFoundError, match="no tensor 'user-values'"):
            saver.restore(session, f"{tmp_path}/part")
        data = tmp_path / "model.ckpt.data-00000-of-00001"
        data = next(tmp_path.glob("model.ckpt.data-00001*"), data)
        damaged = bytearray(data.read_bytes())
        for i in range(0, len(damaged), 16):
            damaged[i] ^= 1
        data.write_bytes(damaged)
        with pytest.raises(tf.errors.DataLossError, match="model.ckpt"):
            saver.restore(session, path)


@pytest.mark.parametrize("key_dtype", [tf.int64, tf.string])
@pytest.mark.parametrize("world_size", [2, 3])
def test_each_worker_restores_the_keys_that_it_owns(tmp_path, world_size, key_dtype):
    path, had = trained(tmp_path, key_dtype=key_dtype)
    found = {}
    for rank in range(world_size):
        with tf.Graph().as_default(), tf.Session() as session:
            table = make(key_dtype=key_dtype)
            restore = ops.lockstep_restore_tables(path, [table.handle], ["user"], rank=rank, world_size=world_size)
            session.run(table.initializer)
            session.run(restore)
            part = contents(session, table, *slots_of(path))
            assert part and not set(part) & set(found)
            found.update(part)
    assert found == had


def test_a_worker_does_not_keep_the_strings_of_others(tmp_path):
    words = [str(i) + "x" * 100_000 for i in range(40)]
    used = []
    with tf.Session() as session:
        table = make(key_dtype=tf.string)
        saver = tf.train.Saver()
        session.run(table.initializer)
        session.run(table.insert(words, np.zeros([40, DIM])))
        path = saver.save(session, f"{tmp_path}/model.ckpt")
        for rank in range(4):
            session.run(table.initializer)
            session.run(ops.lockstep_restore_tables(path, [table.handle], ["user"], rank=rank, world_size=4))
            used.append(session.run(table.memory_bytes()))
    assert sum(used) < 2 * sum(map(len, words))


def test_the_clock_is_never_behind_the_restored_keys(tmp_path):
    path, had = trained(tmp_path)
    latest = max(int(version) for _, version, *_ in had.values())
    assert latest > 0
    with tf.Graph().as_default(), tf.Session() as session:
        # Emulates checkpoints without the step, or with another one.
        tensors = {name: tf.train.load_variable(path, name) for name, _ in tf.train.list_variables(path)}
        tensors["user-clock"] = np.int64([0, 0])
        names = sorted(tensors)
        values = [tf.constant(tensors[name]) for name in names]
        session.run(
            tf.raw_ops.SaveV2(
                prefix=f"{tmp_path}/behind", tensor_names=names, shape_and_slices=[""] * len(names), tensors=values
            )
        )
        table = make()
        ids, step = train(table, tf.train.AdagradOptimizer(0.1))
        tf.train.Saver([table]).restore(session, f"{tmp_path}/behind")
        session.run([variable.initializer for variable in tf.global_variables() if variable is not table])
        session.run(tf.nn.embedding_lookup(table, ids), {ids: [1000]})
        assert session.run(table.get_version([1000])).tolist() == [latest]


def test_a_save_between_two_others_leaves_both_correct(tmp_path):
    with tf.Session() as session:
        table = make()
        ids, step = train(table, tf.train.AdagradOptimizer(0.1))
        savers = [tf.train.Saver(), tf.train.Saver([table])]
        session.run(tf.global_variables_initializer())
        for i, saver in enumerate(savers * 2):
            session.run(step, {ids: [i, 100]})
            path = saver.save(session, f"{tmp_path}/model.ckpt", i)
            assert stored(path, "user", *slots_of(path)) == contents(session, table, *slots_of(path))
    assert context.world_size == 1


def test_strings_that_are_evicted_during_a_save_are_saved(tmp_path):
    table = make(key_dtype=tf.string, evict_option=dynamic.GlobalStepEvict(1))
    ids, step = train(table, tf.train.AdagradOptimizer(0.1))
    names = {"tables": [table.handle], "names": ["user"]}
    counts, checkpoint_id = ops.lockstep_begin_snapshots(**names)
    counted, linked = tf.placeholder(tf.int64), tf.placeholder(tf.int64)
    prefix = f"{tmp_path}/model.ckpt"
    written = ops.lockstep_write_tables(prefix, counted, linked, **names, rank=0, part_rows=2)
    ended = ops.lockstep_end_snapshots(linked, **names)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step, {ids: ["a", "b", "c", ""]})
        had = contents(session, table, *slots_here())
        begun, number = session.run([counts, checkpoint_id])
        for i in range(5):
            session.run(step, {ids: [f"other {i}", "c"]})
        left = contents(session, table)
        assert b"a" not in left and b"c" in left
        session.run(written, {counted: [begun], linked: number})
        session.run(ended, {linked: number})
        assert stored(prefix, "user", *slots_here()) == had


@pytest.mark.parametrize("strategy", [dynamic.CacheStrategy.LRU, dynamic.CacheStrategy.LFU])
def test_the_same_keys_are_evicted_in_the_same_steps_as_if_training_had_not_stopped(tmp_path, strategy):
    evicts = {
        "evict_option": dynamic.BudgetEvict(max_keys=100, cache_strategy=strategy),
        "evict_keys_per_step": 30,
    }
    rng = np.random.default_rng(3)
    batches = [rng.zipf(1.2, 40).clip(1, 2000) for _ in range(60)]

    def keys_by_step(batches, begin):
        """Returns the table's keys after each batch; saves a checkpoint after the 23rd, or first restores it."""
        table = make(**evicts)
        ids, step = train(table, tf.train.AdagradOptimizer(0.1))
        saver = tf.train.Saver()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            if begin:
                saver.restore(session, f"{tmp_path}/model.ckpt")
            found = []
            for i, batch in enumerate(batches[begin:], begin):
                if i == 23 and not begin:
                    saver.save(session, f"{tmp_path}/model.ckpt")
                session.run(step, {ids: batch})
                found.append(sorted(session.run(table.export()[0]).tolist()))
        return found

    whole = keys_by_step(batches, 0)
    assert len(whole[22]) > 50 and whole[-1] != whole[22]
    with tf.Graph().as_default():
        assert keys_by_step(batches, 23) == whole[23:]
