"""The place of what Keras writes: a draft beside the path that the program gives, until it is complete.

Keras writes one file, a folder, a checkpoint of TensorFlow's format (Keras 2), or weights in several files and one that
lists them (`max_shard_size`). Several files get names that the last save does not have, until the file that lists them
is replaced. engine/whole_files.py has the rules for files and folders.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator

import tensorflow as tf

from lockstep._src.engine import file_errors, whole_files
from lockstep._src.saving import bundle

# The error number in a text of the HDF5 library, some of whose errors have no other.
_ERRNO = re.compile(r"\berrno = (\d+)")
# Paths that Keras does not take for files of this machine.
_REMOTE = re.compile(r"(/cns|/cfs|/gcs|/hdfs|/readahead|/placer|/tfhub|.*://)")


@contextlib.contextmanager
def replacing(
    path: str,
    several: bool = False,
    finish: Callable[[str], None] = lambda draft: None,
    makes_parents: bool = False,
) -> Iterator[str]:
    """Yields the path to write in place of `path`. At the end of the block, what was written takes the place of `path`.

    The yielded path is `path` itself if it is remote, a device or a mount point, or lies in a read-only folder.

    Args:
      path: a file, a folder, or the prefix of a checkpoint.
      several: whether the block writes several files of weights, and one that lists them.
      finish: called with the complete draft of a file before it takes its place.
      makes_parents: whether Keras makes the folders above `path` if there are none.

    Raises:
      OSError: the block, or the rename, raised an error of files. `path` is as it was, unless it is written directly.
    """
    if not whole_files.is_replaceable(path) or _REMOTE.match(path):
        yield path
        return
    is_direct, folder, place = False, "", os.path.join(os.path.dirname(path), "")
    try:
        if makes_parents and os.path.dirname(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        with whole_files.draft_of(path) as draft:
            is_direct = draft == path
            folder = "" if is_direct else os.path.dirname(draft)
            if is_direct:
                yield path
                if os.path.isfile(path) and not several:
                    finish(path)
            elif several:
                yield _with_another_name(draft) if os.path.exists(_listing(path)) else draft
                _publish_several(folder, _listing(path))
            else:
                yield draft
                if os.path.isfile(draft):
                    finish(draft)
                _publish(folder, draft, path)
    except (OSError, RuntimeError) as error:
        if (reason := _reason(error)) is None:
            raise
        number, text = reason
        remains = "the file of the last save is unchanged" if os.path.exists(path) else "no file was written"
        if is_direct:
            remains = "it was written directly and may be damaged"
        raise OSError(number, f"{path} cannot be saved: {text}; {remains}") from None
    except tf.errors.OpError as error:  # of an export
        text = file_errors.cause_of(error).replace(f"{folder}/", place) if folder else file_errors.cause_of(error)
        raise file_errors.named(error, f"{path} cannot be saved: {text}") from None
    except Exception as error:
        error.args = tuple(a.replace(f"{folder}/", place) if folder and isinstance(a, str) else a for a in error.args)
        raise


def _reason(error: Exception) -> tuple[int, str] | None:
    """Returns the number and the text of an error of files, None for another error."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (match := _ERRNO.search(str(error))):
        number = int(match[1])
    if number is not None:
        return number, os.strerror(number)
    return (0, " ".join(str(error).split())) if isinstance(error, OSError) else None


def _publish(folder: str, draft: str, path: str) -> None:
    """Gives a draft its place at `path`; other files that Keras has written into its folder come before it."""
    if not os.path.exists(draft) and os.path.exists(f"{draft}.index"):
        bundle.publish(draft, path)
    for name in set(os.listdir(folder)) - {os.path.basename(draft)}:
        whole_files.publish(os.path.join(folder, name), os.path.join(os.path.dirname(path), name))
    if os.path.exists(draft):
        whole_files.publish(draft, path)


def _listing(path: str) -> str:
    """Returns the path of the file that lists the files of weights, if Keras writes several for `path`."""
    return f"{os.path.splitext(path)[0]}.json"


def _with_another_name(draft: str) -> str:
    """Returns another name for a draft of several files, so that no file of the last save has it as well."""
    folder, name = os.path.split(draft)
    base, _, kind = name.rpartition("weights.")
    return os.path.join(folder, f"{base.rstrip('.')}-{uuid.uuid4().hex[:8]}.weights.{kind}")


def _publish_several(folder: str, listing: str) -> None:
    """Gives the files of weights in the folder of a draft their places, then the file that lists them its own.

    Keras opens the first file by its usual name, and reads only listed files. So the first one gets this name as well.
    """
    place = os.path.dirname(listing)
    before = _files_of(listing)
    written = sorted(os.listdir(folder), key=lambda name: name.endswith(".json"))
    for name in written[:-1]:
        whole_files.publish(os.path.join(folder, name), os.path.join(place, name))
    whole_files.publish(os.path.join(folder, written[-1]), listing)
    listed = _files_of(listing)
    first = f"{os.path.basename(listing).removesuffix('.json').replace('.weights', '')}_00000.weights.h5"
    if first not in listed:
        whole_files.link(os.path.join(place, min(listed)), os.path.join(folder, first))
        whole_files.publish(os.path.join(folder, first), os.path.join(place, first))
    for name in before - listed - {first}:
        with contextlib.suppress(OSError):
            os.remove(os.path.join(place, name))


def _files_of(listing: str) -> set[str]:
    """Returns the names of the files of weights that a file lists; none if there is no such file."""
    found: set[str] = set()
    with contextlib.suppress(OSError, ValueError, AttributeError), open(listing) as file:
        for names in json.load(file)["weight_map"].values():
            found.update([names] if isinstance(names, str) else names)
    return {name for name in found if name == os.path.basename(name)}
