"""Files and folders that appear under their names when they are complete.

A save that writes into the file of the last one destroys it if the process dies, or if the disk is full. So a save
writes a draft beside its target, in a hidden folder of its own:

    m.keras                                            the target: the file of the last save, or none
    .m.keras.saving-0b7f31c2a96e-4711-0/m.keras        the draft of process 4711

A complete draft is synced, and then renamed to its target. The rename replaces a file at once. Two folders are also
exchanged at once. A process that is killed leaves its draft behind; the next save in that folder removes it.

Some targets cannot be renamed to: a file in a read-only folder, a file or folder that a container mounts, or a file of
another user in a sticky folder. They are then written directly, after a warning.

Remote paths (s3://, gs://) have neither syncs nor drafts: such a file is complete when it is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import hashlib
import itertools
import logging
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
# Errors of a place that permits no draft or no rename, although its files may be writable.
_NO_RENAME = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.EROFS)
# The name of a folder in its draft's place, until the draft has its name.
_BEFORE = ".before"
# Readers take a folder with this file for a SavedModel. It is written last.
_LAST = "saved_model.pb"
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
      The draft's path: the target's name, in the new folder. It is `target` itself if the target can only be written
      directly, as in a read-only folder.

    Raises:
      PermissionError: the target is read-only.
    """
    refuse_read_only(target)
    name, place = os.path.basename(os.path.abspath(target)), os.path.dirname(os.path.realpath(target))
    remove_abandoned(place)
    folder, refused = os.path.join(place, draft_name(name)), ""
    try:
        os.mkdir(folder)
    except OSError as error:
        if error.errno not in _NO_RENAME or not os.path.exists(target):
            raise
        refused = os.strerror(error.errno)
    if refused:
        _warn_direct(target, refused)
        yield target
        return
    try:
        yield os.path.join(folder, name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def refuse_read_only(target: str) -> None:
    """Raises PermissionError if a file or folder exists and this process may not write to it.

    A rename would still replace it.
    """
    if os.path.exists(target) and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)


def publish(draft: str, target: str) -> None:
    """Makes a complete draft durable, and gives it its name. Before the rename, the target is as it was.

    Files of a folder that the draft does not have stay in the target: a save into a folder of the user deletes
    nothing. A symbolic link stays a link, and the file to which it leads is replaced. Files and folders keep modes.

    The working directory of this process, and a folder that contains it, stay the same folder: their files are replaced
    one by one. A target that cannot be renamed to is written directly.

    Raises:
      OSError: the draft cannot be synced or renamed.
    """
    target = os.path.realpath(target)
    if os.path.isdir(draft):
        sync_tree(draft)
        if os.path.realpath(draft) != target:
            _publish_folder(draft, target)
    else:
        sync(draft)
        if os.path.realpath(draft) != target:
            _replace(draft, target)
    sync(os.path.dirname(target))


def write_text(path: str, text: str) -> None:
    """Writes a text file: readers see the former file or the new one, also after a loss of power.

    A device or a pipe is written directly.

    Raises:
      OSError: the file cannot be written; unless it is written directly, it is as it was. The message names it.
    """
    if not is_local(path):
        with _gfile().GFile(f"{path}.new", "w") as file:
            file.write(text)
        _gfile().rename(f"{path}.new", path, overwrite=True)
        return
    try:
        if not is_replaceable(path):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            return
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
    """Removes the drafts of a folder whose processes were killed. Errors are ignored.

    A process may be killed while its target only has another name, in the draft's folder. It then gets its name back.
    """
    if not is_local(place):
        return
    with contextlib.suppress(OSError):
        for name in os.listdir(place):
            match = _DRAFT.fullmatch(name)
            path = os.path.join(place, name)
            if match is not None and _is_abandoned(match[1], int(match[2]), path):
                _give_back(path, place)
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


def _give_back(abandoned: str, place: str) -> None:
    """Gives the folders their names in `place` that an abandoned exchange has put beside its draft.

    Raises:
      OSError: a folder cannot be renamed.
    """
    names = set(os.listdir(abandoned))
    for name in names:
        target = os.path.join(place, name)
        if f"{name}{_BEFORE}" in names and not os.path.lexists(target):
            os.rename(os.path.join(abandoned, f"{name}{_BEFORE}"), target)


def _publish_folder(draft: str, target: str) -> None:
    if not os.path.isdir(target):
        try:
            os.rename(draft, target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    files = _files_of(draft)
    if _has_working_directory(target):
        _replace_files(draft, target, files)
        return
    _keep(target, draft)
    try:
        old = _renamed(draft, target)
    except OSError as error:
        if error.errno not in _NO_RENAME or not os.path.isdir(target):
            raise
        _warn_direct(target, os.strerror(error.errno))
        _replace_files(draft, target, files)
    else:
        _move_rest(old, target)


def _renamed(draft: str, target: str) -> str:
    """Gives a draft the name of an existing folder. Returns the path that this folder then has."""
    if _exchange(draft, target):
        return draft
    # A file system without the exchange (NFS): for a moment, the folder is only under its other name.
    aside = f"{draft}{_BEFORE}"
    try:
        os.rename(target, aside)
        os.rename(draft, target)
    except BaseException:
        if os.path.lexists(aside) and not os.path.lexists(target):
            os.rename(aside, target)
        raise
    return aside


def _has_working_directory(folder: str) -> bool:
    """Returns whether a folder is, or contains, the working directory: a rename would take it from this process."""
    with contextlib.suppress(OSError):
        return os.path.commonpath([folder, os.getcwd()]) == folder
    return False


def _keep(folder: str, draft: str) -> None:
    """Gives a draft the files of a folder that it does not have, and the modes of those that both have."""
    own = set(os.listdir(draft))
    for name in os.listdir(folder):
        one, other = os.path.join(folder, name), os.path.join(draft, name)
        if name not in own:
            link(one, other)
        elif os.path.isdir(one) and os.path.isdir(other) and not os.path.islink(one):
            _keep(one, other)
        elif os.path.isfile(one) and os.path.isfile(other):
            _copy_mode(one, other)
    sync(draft)
    _copy_mode(folder, draft)


def _copy_mode(source: str, target: str) -> None:
    with contextlib.suppress(OSError):  # some file systems have no modes
        os.chmod(target, stat.S_IMODE(os.stat(source).st_mode))


def _move_rest(old: str, new: str) -> None:
    """Moves the files that have come into a folder since `_keep`: the new folder does not have them."""
    own = set(os.listdir(new))
    for name in os.listdir(old):
        one, other = os.path.join(old, name), os.path.join(new, name)
        if name not in own:
            os.rename(one, other)
        elif os.path.isdir(one) and os.path.isdir(other) and not os.path.islink(one):
            _move_rest(one, other)


def _files_of(folder: str) -> list[tuple[str, list[str]]]:
    """Returns the relative path of each folder and the names of its files; the folder itself comes last."""
    return [
        (os.path.relpath(place, folder), sorted(names, key=lambda name: (name == _LAST, name)))
        for place, _, names in os.walk(folder, topdown=False)
    ]


def _replace_files(draft: str, folder: str, files: list[tuple[str, list[str]]]) -> None:
    """Gives files of a draft to an existing folder, one by one."""
    for inner, names in files:
        place = os.path.normpath(os.path.join(folder, inner))
        os.makedirs(place, exist_ok=True)
        for name in names:
            _replace(os.path.join(draft, inner, name), os.path.join(place, name))
        sync(place)


def _replace(draft: str, target: str) -> None:
    """Renames a file that is on the disk, or copies it into a target that cannot be renamed to."""
    if os.path.exists(target):
        _copy_mode(target, draft)
    try:
        os.replace(draft, target)
    except OSError as error:
        if error.errno not in (*_NO_RENAME, errno.EXDEV) or not os.path.isfile(target):
            raise
        _warn_direct(target, os.strerror(error.errno))
        if not os.path.samefile(draft, target):
            os.chmod(draft, stat.S_IRUSR | stat.S_IWUSR)
            shutil.copyfile(draft, target)
            sync(target)


@functools.cache
def _warn_direct(target: str, reason: str) -> None:
    """Warns once of a target that has no draft."""
    logging.getLogger("lockstep").warning(
        "%s is overwritten in place, because no draft can replace it (%s): a save that fails may damage it",
        target,
        reason,
    )


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
