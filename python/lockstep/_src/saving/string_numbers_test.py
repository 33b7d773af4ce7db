"""The numbers of strings: from the C++ library, and from an independent computation."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from lockstep._src.saving.incremental import IncrementalSaver
from lockstep._src.saving.string_numbers import numbers_of
from lockstep._src.tables import dynamic
from lockstep.testing.tables import remove

_MASK = 2**64 - 1


def strings(count=200):
    """Returns different strings of 0 to 40 bytes of any value."""
    rng = np.random.default_rng(1)
    return sorted({b"", b"\0", b"\0\0", b"12345678", *(rng.bytes(int(n)) for n in rng.integers(0, 41, count))})


def fingerprint(text, salt):
    """Returns Fingerprint of core/base/hash.h with Python's integers."""

    def mix(x):
        x = (x ^ x >> 33) * 0xFF51AFD7ED558CCD & _MASK
        x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
        return x ^ x >> 33

    def fold(a, b):
        return (a * b & _MASK) ^ (a * b >> 64)

    state = mix(salt + 0x9E3779B97F4A7C15 & _MASK) ^ (len(text) * 0xA0761D6478BD642F & _MASK)
    whole = len(text) // 8 * 8
    for i in range(0, whole, 8):
        word = int.from_bytes(text[i : i + 8], "little")
        state = fold(state ^ word, 0xE7037ED1A0B428DB) + word & _MASK
    rest = int.from_bytes(text[whole:], "little")
    return mix(fold(state ^ rest, 0x8EBC6AF09C88C6E3) + rest & _MASK)


@pytest.mark.parametrize("salt", [0, 1, 2**40])
def test_an_independent_computation_gives_the_same(salt, monkeypatch):
    monkeypatch.setattr("lockstep._src.saving.string_numbers._GROUP", 7)
    wanted = np.array([fingerprint(text, salt) for text in strings()], np.uint64).view(np.int64)
    np.testing.assert_array_equal(numbers_of(strings(), salt), wanted)


def test_tables_have_these_numbers(tmp_path):
    with tf.Graph().as_default(), tf.Session() as session:
        table = dynamic.get_embedding_variable("words", 2, key_dtype=tf.string)
        keys = np.array(strings(), object)
        insert, removal = table.insert(keys, tf.zeros([len(keys), 2])), remove(table, keys)
        saver = IncrementalSaver()
        session.run(tf.global_variables_initializer())
        saver.track(session)
        session.run(insert)
        saver.save(session, f"{tmp_path}/model.ckpt", 1)
        session.run(removal)
        increment = saver.save(session, f"{tmp_path}/model.ckpt", 2)
    removed = tf.train.load_checkpoint(increment).get_tensor("words-changed-removed")
    assert sorted(removed.tolist()) == sorted(numbers_of(strings()).tolist())


def test_no_strings_have_no_numbers():
    assert numbers_of([]).shape == (0,)
