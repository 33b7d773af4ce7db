"""Small data for the tests of several modules."""

from __future__ import annotations

import pytest

import criteo
import movielens

SMALL = criteo.GeneratorOptions(train_rows=200_000, eval_rows=5_000, max_table_rows=500, seed=3)


@pytest.fixture(scope="session")
def made_criteo(tmp_path_factory):
    """Generates Criteo-shaped data once; returns their options and their folder."""
    folder = tmp_path_factory.mktemp("criteo") / "made"
    criteo.generate(folder, SMALL)
    return SMALL, folder


@pytest.fixture(scope="session")
def criteo_line():
    """Returns a line of Criteo's text with the label 1, two of whose counts and one of whose ids are missing."""
    counts = "4\t\t-2\t1.0\t0\t0\t0\t0\t0\t0\t0\t0\t9"
    ids = "05db9164\t" + "\t".join(["0000000a"] * 24) + "\t"
    return f"1\t{counts}\t{ids}"


@pytest.fixture
def ratings(tmp_path):
    """Writes twenty ratings, one per hour, in reverse order of time; film 9 has two genres, film 4 none."""
    header = "item|title|releaseDate|videoReleaseDate|imdbURL|" + "|".join(movielens.GENRES)
    none = "|".join("0" * 19)
    some = "0|1" + "|0" * 16 + "|1"
    (tmp_path / "u.item").write_text(f'{header}\n9|A "film"|||x|{some}\n4|Another|||x|{none}\n', "latin-1")
    (tmp_path / "u.user").write_text("user|age|gender|occupation|zip\n7|24|M|writer|85711\n2|53|F|artist|T8H1N\n")
    lines = [f"{7 if h % 2 else 2}|{9 if h % 3 else 4}|{h % 5 + 1}|{3600 * h}" for h in range(19, -1, -1)]
    (tmp_path / "u.data").write_text("\n".join(["user|item|rating|timestamp", *lines]) + "\n")
    return tmp_path
