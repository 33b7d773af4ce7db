"""What a session has just restored is not saved again.

TensorFlow's `CheckpointSaverHook` saves as soon as there is a session. In one that goes on from its last checkpoint
that would be the same checkpoint, under the same name: for a moment there would be neither the old nor the new one, and
a job that is killed in that moment would have lost the checkpoint that it lives by.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from lockstep._src.saving import latest


class _Leaves:
    """A saver that leaves one checkpoint as it is.

    Args:
      saver: saves all others.
      path: the checkpoint's; None: there is none.
    """

    def __init__(self, saver: Any, path: str | None) -> None:
        self._saver, self._path = saver, path

    def save(self, session: Any, save_path: str, global_step: Any = None, **kwargs: Any) -> str:
        if f"{save_path}-{global_step}" == self._path:
            return self._path
        return self._saver.save(session, save_path, global_step=global_step, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._saver, name)


@contextlib.contextmanager
def leaving_what_is_there(hook: Any) -> Iterator[None]:
    """Inside, a `CheckpointSaverHook` doesn't save over the latest checkpoint of its directory. All workers enter it.

    Args:
      hook: of a session that has restored that checkpoint, if there is one.
    """
    path = latest.of_the_job(hook._checkpoint_dir, "checkpoint_restored")
    get_saver = hook._get_saver
    hook._get_saver = lambda: _Leaves(get_saver(), path)
    try:
        yield
    finally:
        del hook._get_saver
