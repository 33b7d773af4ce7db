"""The error of a call that a program makes on one worker, and that all workers have to make.

The engine's error names the exchange that waits. A user knows the call: `fit`, `predict`, `save` or `export`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import tensorflow as tf

from lockstep._src.engine import program_end
from lockstep._src.engine.context import context


@contextlib.contextmanager
def refused(call: str, advice: str, has_begun: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Replaces the error of a block that other workers do not run by one that names the call.

    Args:
      call: the call, such as "predict()".
      advice: a text about what all ranks do in this call, and what to do.
      has_begun: returns whether other workers are known to run the block; then its errors stay as they are.

    Raises:
      RuntimeError: other workers have finished, or have made another call.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if has_begun() or (others := _others_that_went_on(error)) is None:
            raise
        # The error is not the cause of this one, but its consequence. So it is not shown.
        raise RuntimeError(
            f"rank {context.rank} called {call}, but {others} has finished or called something else: inside of "
            f"scope(), {advice} (docs/keras.md)"
        ) from None


def _others_that_went_on(error: tf.errors.OpError) -> str | None:
    """Returns the ranks that finished or made another call while this one began; None: the error is another."""
    text = str(error)
    has_left = " left the job" in text and program_end.FAILED not in text
    if not has_left and "the ranks disagree about call" not in text:
        return None
    ranks = {int(rank) for rank in re.findall(r"\brank (\d+) (?:left|called)", text)} - {context.rank}
    return f"rank {', '.join(map(str, sorted(ranks)))}" if ranks else "another rank"
