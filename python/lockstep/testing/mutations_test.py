"""Malformed inputs: they are reproducible, and a reader that does not refuse them well is a finding."""

import json

import pytest

from lockstep.testing.mutations import SECONDS, TF_CONFIGS, feed, mutation, named, rounds, text_of

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

SEEDS = [b"one:1", b"two:2,three:3"]


def test_a_mutation_is_the_same_for_the_same_numbers_and_another_for_others():
    found = [mutation(SEEDS, number) for number in range(200)]
    assert found == [mutation(SEEDS, number) for number in range(200)]
    assert found != [mutation(SEEDS, number, seed=2) for number in range(200)]
    assert len(set(found)) > 150


def test_mutations_cut_repeat_and_change_inputs_and_insert_texts_that_break_readers():
    found = [mutation(SEEDS, number) for number in range(2000)]
    assert any(len(data) < 3 for data in found)
    assert any(data.count(b"one") > 1 for data in found)
    assert any(b"[" * 100_000 in data for data in found)
    assert any(b"9" * 5000 in data for data in found)
    assert any(byte > 127 for data in found for byte in data)


def test_an_input_without_bytes_has_mutations():
    assert any(mutation([b""], number) for number in range(20))


@pytest.mark.parametrize(
    ("data", "text"), [(b"a=b", "a=b"), (b"a\0b", "a"), (b"", ""), (b"\xff", "\udcff"), ("ä".encode(), "ä")]
)
def test_bytes_are_text_as_in_environment_variables(data, text):
    assert text_of(data) == text


@pytest.mark.parametrize("config", TF_CONFIGS)
def test_well_formed_values_of_tf_config_are_json(config):
    read = json.loads(config)
    assert not read or read["task"]["type"] in read["cluster"]


def test_a_run_has_as_many_inputs_of_the_first_seed_as_are_asked_for(monkeypatch, capsys):
    monkeypatch.delenv(SECONDS, raising=False)
    assert list(rounds("reader", 3)) == [(1, 0), (1, 1), (1, 2)]
    assert capsys.readouterr().out.startswith("fuzz reader: seed 1, 3 inputs in ")


def test_a_run_of_some_time_has_a_seed_of_its_own(monkeypatch):
    monkeypatch.setenv(SECONDS, "0.05")
    found = list(rounds("reader", 1))
    assert [number for _, number in found] == list(range(len(found)))
    assert len({seed for seed, _ in found}) == 1


def test_mutations_that_are_read_are_counted_and_refused_ones_are_not():
    def reads(data):
        if not data.isascii() or len(data) > 10:
            raise ValueError("not this")

    wanted = sum(data.isascii() and len(data) <= 10 for data in (mutation([b"a"], number) for number in range(100)))
    assert feed("reader", reads, [b"a"], ValueError, 100) == wanted
    assert 0 < wanted < 100


def _raises(error):
    def reads(data):
        if data != b"a":
            raise error

    return reads


def test_another_error_is_a_finding_that_says_how_to_repeat_it():
    with pytest.raises(AssertionError, match=r"^reader: mutation \d+ of seed 1, b.*: KeyError\('why'\)$") as found:
        feed("reader", _raises(KeyError("why")), [b"a"], ValueError, 50)
    assert isinstance(found.value.__cause__, KeyError)


def test_a_refusal_without_a_message_is_a_finding():
    with pytest.raises(AssertionError, match=r"^reader refused mutation \d+ of seed 1 without a message: b"):
        feed("reader", _raises(ValueError("")), [b"a"], ValueError, 50)


def test_a_well_formed_input_must_be_read():
    with pytest.raises(ValueError, match="refused"):
        feed("reader", _raises(ValueError("refused")), [b"b"], ValueError, 0)


def test_a_refusal_has_to_name_the_source():
    check = named("TF_CONFIG", _raises(ValueError("TF_CONFIG is wrong")), ValueError)
    assert check(b"a") is None
    with pytest.raises(ValueError, match="TF_CONFIG is wrong"):
        check(b"b")
    with pytest.raises(AssertionError, match="it is wrong"):
        named("TF_CONFIG", _raises(ValueError("it is wrong")), ValueError)(b"b")
