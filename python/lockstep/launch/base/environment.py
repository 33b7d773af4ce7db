"""Another environment for this process: for good, or for a while."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping


def replace_environment(variables: Mapping[str, str]) -> None:
    """Replaces this process's environment variables."""
    os.environ.clear()
    os.environ.update(variables)


@contextlib.contextmanager
def replaced_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Replaces this process's environment variables inside the block."""
    former = dict(os.environ)
    try:
        replace_environment(variables)
        yield
    finally:
        replace_environment(former)
