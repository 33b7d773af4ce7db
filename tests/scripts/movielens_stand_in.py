"""Stands in for `tensorflow_datasets` in the tests of documented programs: the ratings of MovieLens 100K.

Reads `u.data` in the folder that the variable LOCKSTEP_MOVIELENS names, or beside the clone in shared/data/ml-100k.
Otherwise it generates ratings of the same kind. The tests copy it as `tensorflow_datasets.py` into the program's
folder. LOCKSTEP_RATINGS is the number of ratings, from the first one on: programs that shuffle all of them start
slowly.
"""

import os
from pathlib import Path

import numpy as np
import tensorflow as tf

RATINGS, USERS, MOVIES = 100_000, 943, 1682


def read(folder):
    """Reads users, movies and ratings, int64 [100,000] each."""
    file = Path(folder, "u.data")
    with file.open() as lines:
        # Tabs separate the fields, as in GroupLens' file. Or '|' separates them, after a line of names.
        first = lines.readline()
    separator, header = ("\t", 0) if "\t" in first else ("|", int(not first[0].isdigit()))
    columns = np.loadtxt(file, np.int64, delimiter=separator, skiprows=header, usecols=(0, 1, 2))
    return columns.T


def make():
    """Generates the same: movies and users have different frequencies."""
    random = np.random.default_rng(100)
    users = (USERS * random.random(RATINGS) ** 2).astype(np.int64) + 1
    movies = (MOVIES * random.random(RATINGS) ** 3).astype(np.int64) + 1
    return users, movies, np.clip((users * 7 + movies * 3) % 5 + random.integers(0, 2, RATINGS), 1, 5)


def load(name, split):
    """Returns the dataset `movie_lens/100k-ratings` with the three features that the program reads."""
    if (name, split) != ("movie_lens/100k-ratings", "train"):
        raise ValueError(f"{name!r}, {split!r}: this stand-in has only the ratings of MovieLens 100K, split 'train'")
    folder = os.environ.get("LOCKSTEP_MOVIELENS", "")
    count = int(os.environ.get("LOCKSTEP_RATINGS", RATINGS))
    users, movies, ratings = (column[:count] for column in (read(folder) if folder else make()))
    # Texts are generated when they are read. As constants they would be most of each written graph.
    columns = tf.data.Dataset.from_tensor_slices((movies, users, np.array(ratings, np.float32))).batch(1000)
    return columns.map(
        lambda movie, user, rating: {
            "movie_id": tf.strings.as_string(movie),
            "user_id": tf.strings.as_string(user),
            "user_rating": rating,
        }
    ).unbatch()
