"""Prevents a session from saving the checkpoint that it has just restored.

TensorFlow's `CheckpointSaverHook` saves as soon as there is a session. In a session that continues from its last
checkpoint, this would save the same checkpoint again under the same name. For a moment, neither the old nor the new
checkpoint would exist, and a job that is killed in this moment would lose its last checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from lockstep._src.engine import background
from lockstep._src.hooks.interception import attribute_replaced
from lockstep._src.saving import checkpoint, latest


class _SkippingSaver:
    """A saver that never overwrites one given checkpoint. Instead of saving that, it takes the memory for later saves.

    Args:
      saver: saves all other checkpoints.
      path: the prefix of the checkpoint to keep; None if there is none.
    """

    def __init__(self, saver: Any, path: str | None) -> None:
        self._saver, self._path = saver, path

    def save(self, session: Any, save_path: str, global_step: Any = None, **kwargs: Any) -> str:
        if f"{save_path}-{global_step}" == self._path:
            if background.allowed.value:
                checkpoint.take_memory(self._saver, session)
            return self._path
        return self._saver.save(session, save_path, global_step=global_step, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._saver, name)


@contextlib.contextmanager
def keep_restored(hook: Any) -> Iterator[None]:
    """Keeps a `CheckpointSaverHook` from overwriting the latest checkpoint of its directory, inside the block.

    All workers enter the block together.

    Args:
      hook: the hook of a session that has restored this checkpoint, if there is one.
    """
    path = latest.agreed_checkpoint(hook._checkpoint_dir, "checkpoint_restored")
    with attribute_replaced(hook, "_get_saver", lambda get_saver: lambda: _SkippingSaver(get_saver(), path)):
        yield
