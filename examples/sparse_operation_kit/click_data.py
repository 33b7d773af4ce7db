"""Clicks of users on items, generated: the data of the examples with SparseOperationKit's API.

A click depends on the user, on the items that the user has seen, and on two numbers, such as a price.
"""

import numpy as np

USERS, ITEMS, SEEN, NUMBERS = 500, 200, 4, 2


def make_clicks(rows, seed=0):
    """Returns columns of `rows` rows, the same in all processes.

    Args:
      rows: the number of rows R.
      seed: rows of another seed have the same users, items and tastes.

    Returns:
      A dictionary: "user" [R], "items" [R, SEEN] with -1 where there is none, "numbers" [R, NUMBERS], "click" [R].
    """
    tastes = np.random.default_rng(1)
    of_user, of_item = tastes.normal(size=USERS), tastes.normal(size=ITEMS)
    random = np.random.default_rng([seed, rows])
    user, items = random.integers(0, USERS, rows), random.integers(0, ITEMS, [rows, SEEN])
    is_seen = np.arange(SEEN) < random.integers(1, SEEN + 1, [rows, 1])
    numbers = random.normal(size=[rows, NUMBERS]).astype(np.float32)
    mean = (of_item[items] * is_seen).sum(1) / is_seen.sum(1)
    logit = 2 * of_user[user] + 2 * mean + numbers.sum(1)
    click = random.random(rows) < 1 / (1 + np.exp(-logit))
    return {
        "user": user,
        "items": np.where(is_seen, items, -1),
        "numbers": numbers,
        "click": click.astype(np.float32)[:, np.newaxis],
    }


def batches_of(columns, batch, rank, size):
    """Yields this rank's rows of each batch of the job. So R processes see the batches that one process would see.

    Args:
      columns: the result of `make_clicks`.
      batch: the rows of a batch, of all ranks together: a multiple of `size`.
      rank: the rank of this process.
      size: the number of processes.
    """
    for begin in range(0, len(columns["user"]) - batch + 1, batch):
        yield {name: column[begin + rank : begin + batch : size] for name, column in columns.items()}
