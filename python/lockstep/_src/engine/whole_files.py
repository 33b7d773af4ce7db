"""Files and folders that appear under their names when they are complete.

A save that writes into the file of the last one destroys it if the process dies, or if the disk is full. So a save
writes a draft beside its target, in a hidden folder of its own:

    m.keras                                            the target: the file of the last save, or none
    .m.keras.saving-0b7f31c2a96e-4711-0/m.keras        the draft of process 4711

A complete draft is synced, and then renamed to its target. The rename replaces a file at once. Two folders are also
exchanged at once. A process that is killed leaves its draft behind; the next save in that folder removes it.

Remote paths (s3://, gs://) have neither syncs nor drafts: such a file is complete when it is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import hashlib
import itertools
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from typing import Any

_NAME_CHARACTERS = 100
_DRAFT = re.compile(r"\..*\.saving-(\w+)-(\d+)-\d+")
# The age at which the draft of an unknown machine counts as left behind: no save takes that long.
_ABANDONED_AFTER_S = 24 * 3600.0
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_numbers = itertools.count()


def is_local(path: str) -> bool:
    """Returns whether a path is one of the operating system's file systems."""
    return "://" not in path


def is_replaceable(path: str) -> bool:
    """Returns whether a rename can give a draft this name: it is not a remote path, device, pipe or mount point."""
    if not is_local(path):
        return False
    return not os.path.exists(path) or os.path.isfile(path) or (os.path.isdir(path) and not os.path.ismount(path))


@contextlib.contextmanager
def draft_of(target: str) -> Iterator[str]:
    """Makes a folder for the draft of a file or folder, and removes it at the end of the block.

    Args:
      target: the path of the file or folder. Its parent must exist.

    Yields:
      The draft's path: the target's name, in the new folder.
    """
    name, place = os.path.basename(os.path.abspath(target)), os.path.dirname(os.path.realpath(target))
    remove_abandoned(place)
    folder = os.path.join(place, draft_name(name))
    os.mkdir(folder)
    try:
        yield os.path.join(folder, name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(draft: str, target: str) -> None:
    """Makes a complete draft durable, and gives it its name. Before the rename, the target is as it was.

    Files of a folder that the draft does not have stay in the target: a save into a folder of the user deletes
    nothing. A symbolic link stays a link, and the file to which it leads is replaced.

    Raises:
      OSError: the draft cannot be synced or renamed.
    """
    target = os.path.realpath(target)
    if os.path.isdir(draft):
        sync_tree(draft)
        _publish_folder(draft, target)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.chmod(draft, stat.S_IMODE(os.stat(target).st_mode))
        sync(draft)
        os.replace(draft, target)
    sync(os.path.dirname(target))


def write_text(path: str, text: str) -> None:
    """Writes a text file: readers see the former file or the new one, also after a loss of power.

    Raises:
      OSError: the file cannot be written; it is as it was. The message names it.
    """
    if not is_local(path):
        with _gfile().GFile(f"{path}.new", "w") as file:
            file.write(text)
        _gfile().rename(f"{path}.new", path, overwrite=True)
        return
    try:
        with draft_of(path) as draft:
            with open(draft, "w", encoding="utf-8") as file:
                file.write(text)
            publish(draft, path)
    except OSError as error:
        raise OSError(error.errno, f"{path} cannot be written: {error.strerror or error}") from None


def link(source: str, target: str) -> None:
    """Makes a second name for a file, or for all files of a folder; copies if links are not possible."""
    if os.path.isdir(source) and not os.path.islink(source):
        shutil.copytree(source, target, symlinks=True, copy_function=link)
        return
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def sync(path: str) -> None:
    """Waits until a file, or the list of a folder's names, is on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:  # some file systems cannot sync a folder, and need not
        if error.errno != errno.EINVAL or not os.path.isdir(path):
            raise
    finally:
        os.close(opened)


def sync_tree(folder: str) -> None:
    """Syncs all files and folders of a folder; does nothing for a remote one."""
    if not is_local(folder):
        return
    for place, _, names in os.walk(folder, topdown=False):
        for name in names:
            if os.path.isfile(os.path.join(place, name)):
                sync(os.path.join(place, name))
        sync(place)


@contextlib.contextmanager
def draft_folder(place: str, name: str) -> Iterator[str]:
    """Yields the path of a folder that does not exist yet, for a draft in `place`; removes it at the end of the block.

    `rename_folder` gives it its name. Both also work with remote paths.
    """
    _gfile().makedirs(place)
    remove_abandoned(place)
    folder = os.path.join(place, draft_name(name))
    try:
        yield folder
    finally:
        if _gfile().exists(folder):
            _gfile().rmtree(folder)


def rename_folder(draft: str, target: str) -> None:
    """Syncs a complete folder and renames it to a free name; raises an error of `tf.errors` if the name is taken."""
    sync_tree(draft)
    _gfile().rename(draft, target)
    if is_local(target):
        sync(os.path.dirname(os.path.abspath(target)))


def draft_name(name: str) -> str:
    """Returns the name of a folder for the draft of `name`, which `remove_abandoned` recognizes."""
    return f".{name[:_NAME_CHARACTERS]}.saving-{_machine()}-{os.getpid()}-{next(_numbers)}"


def remove_abandoned(place: str) -> None:
    """Removes the drafts of a folder whose processes were killed. Errors are ignored."""
    if not is_local(place):
        return
    with contextlib.suppress(OSError):
        for name in os.listdir(place):
            match = _DRAFT.fullmatch(name)
            path = os.path.join(place, name)
            if match is not None and _is_abandoned(match[1], int(match[2]), path):
                shutil.rmtree(path, ignore_errors=True)


def _gfile() -> Any:
    import tensorflow as tf  # the launcher's tools use this module without TensorFlow

    return tf.io.gfile


def _is_abandoned(machine: str, process: int, path: str) -> bool:
    if machine != _machine():
        with contextlib.suppress(OSError):
            return time.time() - os.stat(path).st_mtime > _ABANDONED_AFTER_S
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


@functools.cache
def _machine() -> str:
    """Returns a name of the processes that share this one's numbers: hosts, and containers on them, may share folders.

    It differs after a restart of the machine, and of the container.
    """
    parts = [os.uname().nodename]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        parts.append(file.read())
    with contextlib.suppress(OSError):
        parts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _publish_folder(draft: str, target: str) -> None:
    try:
        os.rename(draft, target)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    _keep(target, draft)
    if not _exchange(draft, target):
        # A file system without the exchange (NFS): for a moment, the folder is only under its other name.
        aside = f"{draft}.before"
        os.rename(target, aside)
        try:
            os.rename(draft, target)
        except OSError:
            os.rename(aside, target)
            raise


def _keep(folder: str, draft: str) -> None:
    """Gives a draft the files of a folder that it does not have."""
    own = set(os.listdir(draft))
    for name in os.listdir(folder):
        one, other = os.path.join(folder, name), os.path.join(draft, name)
        if name not in own:
            link(one, other)
        elif os.path.isdir(one) and os.path.isdir(other) and not os.path.islink(one):
            _keep(one, other)


def _exchange(one: str, other: str) -> bool:
    """Exchanges the names of two folders at once; returns False if the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    paths = os.fsencode(one), os.fsencode(other)
    if rename(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), other)
