"""Sources of data: what a folder holds is recognised, and converted once."""

from __future__ import annotations

import numpy as np
import pytest

import data
import movielens
import reader
from schema import LABEL, TRAIN, Schema


def test_prepare_recognises_what_a_folder_holds_and_converts_it_once(ratings, criteo_line, tmp_path):
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
    (text / "day_0.tsv").write_text((criteo_line + "\n") * 20)
    assert Schema.load(data.prepare(text, out)).name == "Criteo (day_0.tsv)"


def test_made_movielens_text_converts_like_the_true_one(tmp_path):
    folder = data.prepare_movielens(tmp_path, movielens.GeneratorOptions(ratings=2000, users=50, items=80))
    schema = Schema.load(folder)
    assert (schema.train_rows, schema.eval_rows) == (1800, 200)
    assert schema.categorical["user"] == 51 and schema.categorical["item"] == 81
    rows = reader.head(folder, TRAIN, 1800)
    assert 0.3 < rows[LABEL].mean() < 0.8
    assert np.diff(rows["genres/splits"]).min() >= 1
