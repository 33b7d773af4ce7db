"""Checkpoints with flipped bits, or cut short, raise an error that names the file, and never give other values."""

import glob
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from lockstep._src.saving import bundle, latest
from lockstep._src.saving import table_saveables as saved_tables
from lockstep._src.saving.chain import FOLDER, Chain
from lockstep._src.saving.incremental_test import Program
from lockstep._src.saving.latest_test import announced
from lockstep._src.tables import dynamic
from lockstep._src.tables.dynamic import serialized
from lockstep.testing.mutations import feed, rounds

ROUNDS = 60


@pytest.fixture(name="graph")
def _graph(monkeypatch):
    # Few rows per piece, so that all tensors have several slices.
    monkeypatch.setattr(saved_tables, "PART_ROWS", 7)
    with tf.Graph().as_default():
        yield


def damage(draw, prefix):
    """Flips a bit of a file of a checkpoint, or cuts its end off. Returns the file and what was done."""
    path = Path(draw.choice(sorted(glob.glob(f"{glob.escape(prefix)}.[di]*"))))
    return path, damage_file(draw, path)


def damage_file(draw, path):
    data = bytearray(path.read_bytes())
    at = draw.randrange(len(data))
    if draw.randrange(4) == 0:
        path.write_bytes(data[:at])
        return f"cut off at {at} of {len(data)}"
    bit = draw.randrange(8)
    data[at] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {at} of {len(data)}"


@pytest.mark.parametrize("damaged", ["full", "increment"])
def test_a_damaged_checkpoint_is_an_error_that_names_it(tmp_path, damaged, graph):
    """The checkpoint has dense variables, tables with slots, counts and counted keys, and tables of strings."""
    with tf.Session() as session:
        program = Program()
        session.run(tf.global_variables_initializer())
        program.saver.track(session)
        program.run(session, 3, 1)
        full = program.saver.save(session, f"{tmp_path}/good/model.ckpt", 3)
        program.run(session, 3, 2)
        increment = program.saver.save(session, f"{tmp_path}/good/model.ckpt", 6)
        assert increment.endswith("-to-6")
        held = program.held(session)
        refused = total = 0
        for seed, number in rounds(f"checkpoint ({damaged})", ROUNDS):
            total += 1
            draw = random.Random(f"{seed} {number}")
            shutil.rmtree(tmp_path / "bad", ignore_errors=True)
            shutil.copytree(tmp_path / "good", tmp_path / "bad")
            bad = full.replace("/good/", "/bad/")
            path, what = damage(draw, bad if damaged == "full" else increment.replace("/good/", "/bad/"))
            where = f"round {number} of seed {seed}: {path.name}: {what}"
            try:
                program.saver.restore(session, bad)
            except (tf.errors.OpError, ValueError) as error:
                refused += 1
                prefix = str(path).partition(".data-")[0].removesuffix(".index")
                assert prefix in str(error), f"{where}: {str(error)[-2000:]}"
                continue
            # The damaged byte is never read: it is at an index's end, or in a tensor that these tables do not need.
            assert program.held(session) == held, where
    assert refused > 0.9 * total


def test_a_table_of_damaged_strings_is_an_error():
    """Object-based checkpoints and Keras' files hold tables in this form, without checksums of their own."""
    table = dynamic.get_embedding_variable("damaged", 3)
    tf2.nn.embedding_lookup(table, tf2.range(50))
    strings = serialized.to_strings(table).numpy()

    def contents():
        keys, rows, *_ = table.export()
        return dict(zip(keys.numpy().tolist(), rows.numpy().tolist(), strict=True))

    held = contents()
    assert len(held) == 50
    refused = total = 0
    for seed, number in rounds("table as strings", ROUNDS):
        total += 1
        draw = random.Random(f"{seed} {number}")
        damaged = [bytearray(content) for content in strings]
        content = draw.choice(damaged)
        at = draw.randrange(len(content))
        if draw.randrange(4) == 0:
            del content[at:]
        else:
            content[at] ^= 1 << draw.randrange(8)
        try:
            serialized.from_strings(table, tf2.constant([bytes(content) for content in damaged]))
        except tf.errors.OpError as error:
            # Programs would take OutOfRangeError for the end of their data.
            assert not isinstance(error, tf.errors.OutOfRangeError)
            refused += 1
            continue
        assert contents() == held, (seed, number)
    assert refused > 0.9 * total
    serialized.from_strings(table, tf2.constant(strings))
    assert contents() == held


def test_a_copy_of_a_damaged_checkpoint_is_none(tmp_path, graph):
    """Exports copy bytes. The index is checked before the copy, and the bytes when they are read."""
    rng = np.random.default_rng(5)
    tensors = {f"tensor/{i}": rng.normal(size=(7, i)).astype(np.float32) for i in range(1, 40)}
    with tf.Session() as session:
        session.run(
            tf.raw_ops.SaveV2(
                prefix=f"{tmp_path}/good",
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                tensors=[tf.constant(value) for value in tensors.values()],
            )
        )
    refused = total = 0
    for seed, number in rounds("copy of a checkpoint", 120):
        total += 1
        draw = random.Random(f"{seed} {number}")
        for file in glob.glob(f"{tmp_path}/good.*"):
            shutil.copy(file, file.replace("/good.", "/bad."))
        path, what = damage(draw, f"{tmp_path}/bad")
        where = f"round {number} of seed {seed}: {path.name}: {what}"
        try:
            bundle.copy_tensors(f"{tmp_path}/bad", tensors, f"{tmp_path}/copy")
            reader = tf.train.load_checkpoint(f"{tmp_path}/copy")
            read = {name: reader.get_tensor(name) for name in tensors}
        except (tf.errors.OpError, ValueError) as error:
            refused += 1
            # Damage in copied bytes is found when the copy is read.
            assert f"{tmp_path}/bad" in str(error) or f"{tmp_path}/copy" in str(error), f"{where}: {error}"
            continue
        assert all(np.array_equal(read[name], value) for name, value in tensors.items()), where
        assert path.suffix == ".index", where
    assert refused > 0.9 * total


def test_an_index_is_read_or_refused(tmp_path, graph):
    with tf.Session() as session:
        for number, words in enumerate((["a"], [f"name/{i}" for i in range(50)])):
            save = tf.raw_ops.SaveV2(
                prefix=f"{tmp_path}/{number}",
                tensor_names=words,
                shape_and_slices=[""] * len(words),
                tensors=[tf.constant(1.0)] * len(words),
            )
            session.run(save)
    seeds = [Path(f"{tmp_path}/{number}.index").read_bytes() for number in range(2)]
    path = tmp_path / "model.index"

    def reads(data):
        path.write_bytes(data)
        try:
            return bundle._read_table(str(path))
        except ValueError as error:
            assert str(path) in str(error)
            raise

    feed("index of a checkpoint", reads, seeds, ValueError, 300)


def test_a_damaged_chain_is_refused(tmp_path):
    chain = Chain("model.ckpt-2", ["model.ckpt-2-to-4", "model.ckpt-2-to-7"])
    chain.write(str(tmp_path))
    path = Path(tmp_path, FOLDER, "chain.json")

    def reads(data):
        path.write_bytes(data)
        try:
            read = Chain.read(str(tmp_path))
        except ValueError as error:
            assert str(path) in str(error)
            raise
        assert (read.base, read.increments) == (chain.base, chain.increments)

    written = path.read_bytes()
    feed("chain.json", reads, [written], ValueError, 300)
    for bit in range(8 * len(written)):
        flipped = bytearray(written)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            reads(bytes(flipped))
        except ValueError:
            continue
        assert bytes(flipped).split() == written.split()  # only white space may differ
    for end in range(len(written)):
        with pytest.raises(ValueError, match="chain.json"):
            reads(written[:end])


def test_a_state_file_with_any_bit_flipped_or_cut_anywhere_names_the_same_checkpoint_or_is_refused(tmp_path):
    """Training from step 0, or from another checkpoint, would go unnoticed."""
    # Some of these names differ in one bit.
    path, last = announced(tmp_path, [1, 5, 7, 3])
    written = path.read_bytes()
    assert latest.latest_checkpoint(tmp_path) == last
    damaged = [written[:end] for end in range(len(written))]
    for bit in range(8 * len(written)):
        flipped = bytearray(written)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    refused = 0
    for data in damaged:
        path.write_bytes(data)
        try:
            assert latest.latest_checkpoint(tmp_path) == last, data
        except tf.errors.DataLossError as error:
            refused += 1
            assert str(path) in error.message and "model.ckpt-7" in error.message
    assert refused > 0.5 * len(damaged)


def test_state_files_of_all_kinds_that_are_damaged(tmp_path):
    refused = total = 0
    for seed, number in rounds("state file", 300):
        draw = random.Random(f"{seed} {number}")
        if number % 50 == 0:
            shutil.rmtree(tmp_path / "model", ignore_errors=True)
            (tmp_path / "model").mkdir()
            steps = [draw.randrange(10 ** draw.randint(1, 6)) for _ in range(draw.randint(1, 6))]
            path, last = announced(tmp_path / "model", list(dict.fromkeys(steps)), draw.randrange(2))
            written = path.read_bytes()
        total += 1
        path.write_bytes(written)
        where = f"round {number} of seed {seed}: {damage_file(draw, path)}"
        try:
            assert latest.latest_checkpoint(path.parent) == last, where
        except tf.errors.DataLossError as error:
            refused += 1
            assert str(path) in error.message, where
    assert refused > 0.4 * total
