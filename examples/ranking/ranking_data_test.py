"""The example's data: made up as seeded, converted row for row, and read back in order."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

import criteo
import data
import movielens
import reader
from schema import EVAL, LABEL, TRAIN, Schema, files

SMALL = criteo.GeneratorOptions(train_rows=200_000, eval_rows=5_000, max_table_rows=500, seed=3)
COUNTS = "4\t\t-2\t1.0\t0\t0\t0\t0\t0\t0\t0\t0\t9"
HASHES = "05db9164\t" + "\t".join(["0000000a"] * 24) + "\t"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("criteo") / "made"
    criteo.generate(folder, SMALL)
    return folder


@pytest.fixture
def ratings(tmp_path):
    """Twenty ratings, one an hour, in the reverse order of time; film 9 has two genres, film 4 none."""
    header = "item|title|releaseDate|videoReleaseDate|imdbURL|" + "|".join(movielens.GENRES)
    none = "|".join("0" * 19)
    some = "0|1" + "|0" * 16 + "|1"
    (tmp_path / "u.item").write_text(f'{header}\n9|A "film"|||x|{some}\n4|Another|||x|{none}\n', "latin-1")
    (tmp_path / "u.user").write_text("user|age|gender|occupation|zip\n7|24|M|writer|85711\n2|53|F|artist|T8H1N\n")
    lines = [f"{7 if h % 2 else 2}|{9 if h % 3 else 4}|{h % 5 + 1}|{3600 * h}" for h in range(19, -1, -1)]
    (tmp_path / "u.data").write_text("\n".join(["user|item|rating|timestamp", *lines]) + "\n")
    return tmp_path


def test_made_data_have_the_published_columns_in_several_files_and_row_groups(made):
    schema = Schema.load(made)
    assert len(schema.numeric) == 13 and len(schema.categorical) == 26
    assert (schema.train_rows, schema.eval_rows) == (SMALL.train_rows, SMALL.eval_rows)
    parts = [pq.ParquetFile(path) for path in files(made, TRAIN)]
    assert len(parts) > 1 and sum(part.num_row_groups for part in parts) > 2
    assert sum(part.metadata.num_rows for part in parts) == SMALL.train_rows
    assert parts[0].metadata.row_group(0).column(0).compression == "ZSTD"
    rows = reader.head(made, EVAL, SMALL.eval_rows)
    assert set(np.unique(rows[LABEL])) == {0.0, 1.0}
    assert 0.2 < rows[LABEL].mean() < 0.32
    for name, table_rows in schema.categorical.items():
        assert table_rows == min(500, criteo.KAGGLE_CARDINALITIES[criteo.CATEGORICAL.index(name)])
        assert rows[name].min() >= 0 and rows[name].max() < table_rows
    hottest = np.bincount(rows["C3"]).max() / len(rows["C3"])
    assert hottest > 20 / 500, "ids should be skewed"


def test_the_same_seed_makes_the_same_files_and_another_does_not(made, tmp_path):
    options = criteo.GeneratorOptions(train_rows=3000, eval_rows=100, max_table_rows=50, seed=3)
    criteo.generate(tmp_path / "a", options)
    criteo.generate(tmp_path / "b", options)
    criteo.generate(tmp_path / "c", criteo.GeneratorOptions(**{**vars(options), "seed": 4}))
    a, b, c = (reader.head(tmp_path / name, TRAIN, 3000) for name in "abc")
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert not np.array_equal(a["C3"], c["C3"])


def test_the_teacher_tells_labels_apart(made):
    columns, logits = criteo.Teacher(SMALL).draw(np.random.default_rng(11), 20_000)
    assert reader.exact_auc(columns[LABEL], logits) > 0.8
    assert reader.exact_auc(columns[LABEL], np.random.default_rng(5).random(20_000)) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("header", [False, True])
def test_criteo_text_becomes_hashed_ids_and_logarithms(tmp_path, header):
    lines = [f"{i % 2}\t{COUNTS}\t{HASHES}" for i in range(20)]
    if header:
        names = ["label", *criteo.NUMERIC, *criteo.CATEGORICAL]
        lines = [",".join(names), *(line.replace("\t", ",") for line in lines)]
    source = tmp_path / "train.txt"
    source.write_text("\n".join(lines) + "\n")
    schema = criteo.convert(source, tmp_path / "out")
    assert (schema.train_rows, schema.eval_rows) == (18, 2)
    assert schema.categorical["C1"] == 80 and schema.categorical["C9"] == 3
    rows = reader.head(tmp_path / "out", EVAL, 10)
    np.testing.assert_array_equal(rows[LABEL], [0, 1])
    expected = {"I1": np.log(5), "I2": 0, "I3": 0, "I4": np.log(2), "I5": 0, "I13": np.log(10)}
    for name, value in expected.items():
        np.testing.assert_allclose(rows[name], [value] * 2, rtol=1e-6, err_msg=name)
    # 0x05db9164 = 98275684 = 79 * 1243996; 10 mod 79 = 10; 10 mod 2 = 0; missing is 0.
    for name, value in {"C1": 1, "C2": 11, "C9": 1, "C26": 0}.items():
        np.testing.assert_array_equal(rows[name], [value] * 2, err_msg=name)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"1\t{COUNTS}\t" + "\t".join(["word"] * 26), "column C1: want hexadecimal"),
        (f"1\tmany\t{COUNTS[2:]}\t{HASHES}", "many"),
    ],
)
def test_a_line_that_is_not_criteos_is_named(tmp_path, line, message):
    source = tmp_path / "train.txt"
    source.write_text((line + "\n") * 20)
    with pytest.raises(ValueError, match=message):
        criteo.convert(source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["train.txt"], "a failed conversion leaves nothing"


def test_movielens_rows_are_joined_and_the_last_tenth_by_time_is_held_out(ratings, tmp_path):
    schema = movielens.convert(ratings, tmp_path / "out")
    assert (schema.train_rows, schema.eval_rows) == (18, 2)
    assert schema.categorical == {"user": 8, "item": 10, "hour": 24, "gender": 2, "occupation": 2, "zip": 2}
    rows = reader.head(tmp_path / "out", EVAL, 10)
    # Hour 18: user 2 rated film 4 with 18 mod 5 + 1 = 4 stars. Hour 19: user 7 rated film 9 with 5.
    for name, values in {
        LABEL: [1, 1],
        "user": [2, 7],
        "item": [4, 9],
        "hour": [18, 19],
        "gender": [0, 1],
        "occupation": [0, 1],
        "zip": [1, 0],
        "genres": [1, 18],
        "genres/splits": [0, 0, 2],
    }.items():
        np.testing.assert_array_equal(rows[name], values, err_msg=name)
    np.testing.assert_allclose(rows["age"], [0.53, 0.24], rtol=1e-6)
    training = reader.head(tmp_path / "out", TRAIN, 100)
    assert sorted(training["hour"]) == list(range(18)), "every earlier rating trains"
    assert list(training["hour"]) != list(range(18)), "in shuffled order"
    np.testing.assert_array_equal(training[LABEL], training["hour"] % 5 >= 3)


def test_movielens_as_published_has_no_headers(ratings, tmp_path):
    expected = movielens.read_columns(ratings)
    for name in movielens.FILES:
        lines = (ratings / name).read_text("latin-1").split("\n")[1:]
        (ratings / name).write_text("\n".join(lines).replace("|", "\t" if name == "u.data" else "|"), "latin-1")
    columns, rows = movielens.read_columns(ratings)
    assert rows == expected[1]
    for name, column in columns.items():
        assert list(column) == list(expected[0][name]), name


def test_a_rating_of_an_unknown_film_is_named(ratings, tmp_path):
    with (ratings / "u.data").open("a") as file:
        file.write("7|12|3|1\n")
    with pytest.raises(ValueError, match="item 12, which u.item lacks"):
        movielens.convert(ratings, tmp_path / "out")


def test_prepare_recognises_what_a_folder_holds_and_converts_it_once(ratings, tmp_path):
    out = tmp_path / "prepared"
    folder = data.prepare(ratings, out)
    assert Schema.load(folder).name == "MovieLens"
    made_at = (folder / "schema.json").stat().st_mtime_ns
    assert data.prepare(ratings, out) == folder and data.prepare(folder, out) == folder
    assert (folder / "schema.json").stat().st_mtime_ns == made_at
    (ratings / "u.user").write_text((ratings / "u.user").read_text().replace("|24|", "|30|"))
    assert data.prepare(ratings, out) == folder
    assert (folder / "schema.json").stat().st_mtime_ns != made_at, "a changed source is converted again"
    with pytest.raises(ValueError, match="nowhere: want a folder with"):
        data.prepare(tmp_path / "nowhere", out)
    text = tmp_path / "text"
    text.mkdir()
    with pytest.raises(ValueError, match="found 0 files of Criteo's form"):
        data.prepare(text, out)
    (text / "day_0.tsv").write_text(f"1\t{COUNTS}\t{HASHES}\n" * 20)
    assert Schema.load(data.prepare(text, out)).name == "Criteo (day_0.tsv)"


def test_made_movielens_text_converts_like_the_true_one(tmp_path):
    folder = data.prepare_movielens(tmp_path, movielens.GeneratorOptions(ratings=2000, users=50, items=80))
    schema = Schema.load(folder)
    assert (schema.train_rows, schema.eval_rows) == (1800, 200)
    assert schema.categorical["user"] == 51 and schema.categorical["item"] == 81
    rows = reader.head(folder, TRAIN, 1800)
    assert 0.3 < rows[LABEL].mean() < 0.8
    assert np.diff(rows["genres/splits"]).min() >= 1


def test_batches_reach_over_row_groups_and_files(made):
    whole = reader.head(made, TRAIN, SMALL.train_rows)
    parts = list(reader.batches(made, TRAIN, 30_000))
    assert [len(part[LABEL]) for part in parts] == [30_000] * 6 + [20_000]
    for name, column in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), column)
    assert len(list(reader.batches(made, TRAIN, 30_000, drop_remainder=True))) == 6


def test_exact_auc_counts_pairs():
    rng = np.random.default_rng(1)
    labels, scores = rng.integers(0, 2, 60), rng.integers(0, 9, 60) / 8
    pairs = [(p, n) for p in scores[labels == 1] for n in scores[labels == 0]]
    expected = np.mean([1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs])
    assert reader.exact_auc(labels, scores) == pytest.approx(expected)
    with pytest.raises(ValueError, match="both labels"):
        reader.exact_auc(np.ones(3), np.ones(3))
