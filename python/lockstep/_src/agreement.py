"""What workers settle among themselves outside a training step: values that worker 0 decides for all."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tensorflow as tf

from lockstep._src import collectives
from lockstep._src.context import context


def from_chief(value: Any, name: str) -> Any:
    """Worker 0's `value`, on every worker. All workers call it, in the same order.

    Args:
      value: what json can carry; only worker 0's counts.
      name: of the exchange, for errors.
    """
    if context.world_size == 1:
        return value
    context.ensure_initialized()
    mine = json.dumps(value).encode() if context.rank == 0 else b""
    # A graph of its own: the caller's may be finalized, and is not to grow by this.
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        gathered = collectives.allgather(tf.constant(np.frombuffer(mine, np.uint8)), name=f"agree_{name}")
        return json.loads(session.run(gathered).tobytes())
