"""Makes DeepRec's module names below `tensorflow` importable; loaded by a .pth file at the start of every Python.

    from tensorflow.python.distribute.group_embedding_collective_strategy import CollectiveStrategy
    from tensorflow.core.framework.embedding import config_pb2
    python -m tensorflow.python.distribute.launch python main.py

Modules of the package `deeprec` are found under these names. The finder is the last of `sys.meta_path`, so that it
is asked only for what nobody else has: a TensorFlow that brings these modules itself, as DeepRec's does, keeps its own.

The launcher needs no TensorFlow. Where the interpreter was started with `-m` and the launcher's name, empty packages
take the place of `tensorflow` and of those in between, which saves the seconds that their import takes.

Every Python start pays for this module, so it imports nothing that is not loaded by then.
"""

import sys

_PARENT = "tensorflow.python.distribute"
LAUNCHER = f"{_PARENT}.launch"
_OPTIONS = "tensorflow.core.framework.embedding"
# Name -> the module of the package `deeprec` that is meant.
_MODULES = {
    LAUNCHER: "launch",
    f"{_OPTIONS}.config_pb2": "config_pb2",
    f"{_PARENT}.group_embedding_collective_strategy": "group_embedding_collective_strategy",
}
_OPTIONS_WITH_ARGUMENT = ("-W", "-X", "--check-hash-based-pycs")


class _Finder:
    """Finds DeepRec's modules and empty packages that they lie in: those that TensorFlow lacks, or the launcher's."""

    def __init__(self, *packages: str) -> None:
        self._packages = packages

    def find_spec(self, name, path=None, target=None):
        """As importlib asks of a finder; None for other names."""
        if name in self._packages:
            from importlib.machinery import ModuleSpec

            return ModuleSpec(name, None, is_package=True)
        if name not in _MODULES:
            return None
        from importlib.util import find_spec, spec_from_file_location

        found = find_spec(f"deeprec.{_MODULES[name]}")
        return found and spec_from_file_location(name, found.origin)


def is_launcher(arguments: list[str]) -> bool:
    """Whether a command line, the interpreter's first, runs the launcher by `-m`."""
    words = iter(arguments[1:])
    for word in words:
        if word in _OPTIONS_WITH_ARGUMENT:
            next(words, None)
        elif not word.startswith(("--", "-W", "-X")):
            # One-letter options may stand together, and a module's name may follow at once.
            flags, module, attached = word.partition("m")
            if word[0] != "-" or "c" in flags or word == "-":
                return False
            if module:
                return (attached or next(words, "")) == LAUNCHER
    return False


sys.meta_path.append(_Finder(_OPTIONS))
if is_launcher(sys.orig_argv):
    sys.meta_path.insert(0, _Finder("tensorflow", "tensorflow.python", _PARENT))
