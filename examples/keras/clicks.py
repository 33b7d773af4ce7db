"""Writes `clicks.parquet`, the rows of `train.py`: a user's number, a query's words, and 1 if there was a click."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

user, word = np.random.default_rng(0).integers(0, 1000, [2, 8192])
query = [f"query {number}" for number in word]
pq.write_table(pa.table({"user": user, "query": query, "click": (user % 2).astype(np.float32)}), "clicks.parquet")
