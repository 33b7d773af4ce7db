"""Finds modules of the package `deeprec` under the names that DeepRec gives them below `tensorflow`.

A .pth file loads this module at the start of every Python. It serves these lines:

- `from tensorflow.python.distribute.group_embedding_collective_strategy import CollectiveStrategy`
- `from tensorflow.core.framework.embedding import config_pb2`
- `python -m tensorflow.python.distribute.launch python main.py`

The finder is the last of `sys.meta_path`, so that Python asks it only for modules that no other finder has. DeepRec's
own TensorFlow brings these modules itself and keeps them.

The launcher needs no TensorFlow. If the interpreter was started with `-m` and the launcher's name, empty packages
replace `tensorflow` and the packages in between. That saves the seconds that their import takes.

Every Python start pays for this module, so it imports nothing that is not loaded by then.
"""

import sys

TYPE_CHECKING = False  # type checkers take a variable of this name for true
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_PARENT = "tensorflow.python.distribute"
LAUNCHER = f"{_PARENT}.launch"
_OPTIONS = "tensorflow.core.framework.embedding"
# Name -> its module of the package `deeprec`.
_MODULES = {
    LAUNCHER: "launch",
    f"{_OPTIONS}.config_pb2": "config_pb2",
    f"{_PARENT}.group_embedding_collective_strategy": "group_embedding_collective_strategy",
}
_OPTIONS_WITH_ARGUMENT = ("-W", "-X", "--check-hash-based-pycs")


class _Finder:
    """A finder of DeepRec's modules, and of empty packages around them."""

    def __init__(self, *packages: str) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        """Returns the module's specification, as importlib asks of a finder; None for other names."""
        if name in self._packages:
            from importlib.machinery import ModuleSpec

            return ModuleSpec(name, None, is_package=True)
        if name not in _MODULES:
            return None
        from importlib.util import find_spec, spec_from_file_location

        found = find_spec(f"deeprec.{_MODULES[name]}")
        return found and spec_from_file_location(name, found.origin)


def is_launcher(arguments: list[str]) -> bool:
    """Returns whether the interpreter's command line runs the launcher by `-m`."""
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
