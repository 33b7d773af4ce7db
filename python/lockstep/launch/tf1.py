"""Runs a program written for TensorFlow 1 on today's TensorFlow.

    python -m lockstep.launch.tf1 main.py ...      (or -m module ..., or -c code ...)

In the program, and in modules below its folder or the working directory, `import tensorflow` returns a module that
looks like TensorFlow 1. It has the names of `tensorflow.compat.v1`, then the names of the real `tensorflow`, such as
`tensorflow.python`. It also has the names of DeepRec's TensorFlow 1, which has dynamic tables. All other modules, also
Keras and Lockstep, keep the real TensorFlow: `sys.modules` and TensorFlow's own modules stay unchanged. This works
because a function finds `__import__` in the builtins of the module that defines it: the program's modules get builtins
of their own.

Not covered are `importlib.import_module("tensorflow")` and `exec` in the program, which bypass `__import__`, and
`tf.contrib`, which was removed from TensorFlow.
"""

import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, ModuleType, TracebackType
from typing import Any

_USAGE = "usage: python -m lockstep.launch.tf1 (main.py | -m module | -c code) [arguments]"
# Packages that count as libraries even if they lie below the working directory, as in a checkout.
_LIBRARIES = {"lockstep", "hybridbackend", "horovod", "sparse_operation_kit", "tensorflow", "keras", "tf_keras"}
_INSTALLED_FOLDERS = {"site-packages", "dist-packages"}
# tf.contrib held many libraries, most of them without a successor under another name: nothing replaces them here.
_NO_CONTRIB = (
    "tf.contrib is gone from TensorFlow; of its parts, feature columns and what reads them are in tf.feature_column "
    "and in hb.keras.layers.dense_features, layers in tf.layers, and cells in tf.nn.rnn_cell"
)
# Names that DeepRec adds to TensorFlow's namespaces, or defines differently. They are names of lockstep.embedding.
_DEEPREC_NAMES = {
    "": (
        *(
            "EmbeddingVariableOption",
            "InitializerOption",
            "StorageOption",
            "CheckpointOption",
            "get_embedding_variable",
        ),
        *("GlobalStepEvict", "L2WeightEvict", "CounterFilter", "CBFFilter"),
    ),
    "feature_column": (
        "categorical_column_with_embedding",
        "embedding_column",
        "group_embedding_column_scope",
        "sequence_categorical_column_with_embedding",
        "shared_embedding_columns",
    ),
    "nn": ("group_embedding_lookup", "group_embedding_lookup_sparse"),
}
_lock = threading.RLock()


def _deeprec_name(name: str) -> Any:
    return getattr(importlib.import_module("lockstep.embedding"), name)


class _Namespace(ModuleType):
    """One of TensorFlow's namespaces with DeepRec's names in it."""

    def __init__(self, inner: ModuleType, added: Sequence[str]):
        super().__init__(inner.__name__, inner.__doc__)
        self.__dict__["_inner"], self.__dict__["_added"] = inner, added

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return [public for public in dir(self) if not public.startswith("_")]
        return _deeprec_name(name) if name in self._added else getattr(self._inner, name)

    def __dir__(self) -> list[str]:
        return sorted({*self._added, *dir(self._inner)})


class TensorFlow1(ModuleType):
    """The program's `tensorflow` module. Attributes come from compat.v1, then from the real tensorflow."""

    def __init__(self, real: ModuleType, v1: ModuleType):
        super().__init__("tensorflow", real.__doc__)
        self.__dict__.update(
            __path__=real.__path__, __file__=real.__file__, __spec__=real.__spec__, __version__=v1.__version__
        )
        self.__dict__["_real"], self.__dict__["_v1"] = real, v1

    def __getattr__(self, name: str) -> Any:
        if name in _DEEPREC_NAMES:
            namespace = _Namespace(getattr(self._v1, name), _DEEPREC_NAMES[name])
            self.__dict__[name] = namespace
            return namespace
        for module in (self._v1, self._real):
            # hasattr would hide the error of a lazy attribute that fails to load.
            try:
                return getattr(module, name)
            except AttributeError:
                continue
        if name in _DEEPREC_NAMES[""]:
            return _deeprec_name(name)
        if name == "__all__":
            return [public for public in dir(self._v1) if not public.startswith("_")]
        if name == "estimator":
            # This project's own: TensorFlow 2.16 and later have none.
            return importlib.import_module("lockstep.estimator.tf1")
        hint = f"; {_NO_CONTRIB}" if name == "contrib" else ""
        raise AttributeError(
            f"module 'tensorflow' (TensorFlow 1 on {self.__version__}) has no attribute {name!r}{hint}"
        )

    def __dir__(self) -> list[str]:
        return sorted({*_DEEPREC_NAMES[""], *self.__dict__, *dir(self._v1)})


_module: TensorFlow1 | None = None


def _tensorflow1() -> TensorFlow1:
    """Returns the single TensorFlow 1 of this process. The first call loads TensorFlow and sets its behaviour."""
    global _module
    with _lock:
        if _module is None:
            # tf.layers and tf.nn.rnn_cell need Keras 2; TensorFlow reads this when it loads Keras.
            if importlib.util.find_spec("tf_keras") is not None:
                os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
            real = importlib.import_module("tensorflow")
            v1 = importlib.import_module("tensorflow.compat.v1")
            deprecation = importlib.import_module("tensorflow.python.util.deprecation")
            with deprecation.silence():
                v1.disable_v2_behavior()
                # Resource variables, optional in TensorFlow 1, have a defined order of reads and writes.
                v1.enable_resource_variables()
            _module = TensorFlow1(real, v1)
        return _module


def _import(
    name: str,
    globals: Mapping[str, Any] | None = None,
    locals: Mapping[str, Any] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """Replaces `__import__` in the program's modules."""
    if level or name.partition(".")[0] != "tensorflow":
        return builtins.__import__(name, globals, locals, fromlist, level)
    tensorflow = _tensorflow1()
    path = name.split(".")[1:]
    if not path:
        return tensorflow
    if path[0] == "contrib":
        raise ModuleNotFoundError(f"No module named {name!r}: {_NO_CONTRIB}", name=name)
    # `tensorflow.keras` and similar names are attributes; the ones of compat.v1 are meant.
    found: Any = tensorflow
    for part in path:
        found = getattr(found, part, None)
    if not isinstance(found, ModuleType):
        builtins.__import__(name, globals, locals, (), 0)
        found = sys.modules[name]
    if not fromlist:
        return tensorflow
    for attribute in fromlist:
        if attribute != "*" and not hasattr(found, attribute) and hasattr(found, "__path__"):
            builtins.__import__(name, globals, locals, (attribute,), 0)
    return found


class _Loader(importlib.machinery.SourceFileLoader):
    """A loader that runs a module with the program's builtins."""

    def __init__(self, name: str, path: str, program_builtins: dict[str, Any]):
        super().__init__(name, path)
        self._builtins = program_builtins

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self._builtins
        super().exec_module(module)


class ProgramFinder(importlib.abc.MetaPathFinder):
    """A finder for modules below the given folders, which run with the program's builtins."""

    def __init__(self, folders: Sequence[str], program_builtins: dict[str, Any]):
        self._folders = [os.path.join(os.path.realpath(folder), "") for folder in folders]
        self._builtins = program_builtins
        self._excluded = [
            os.path.join(os.path.realpath(sysconfig.get_path(kind)), "") for kind in ("stdlib", "platstdlib")
        ]

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns the spec of a module of the program; None for other modules."""
        if name.partition(".")[0] in _LIBRARIES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or type(spec.loader) is not importlib.machinery.SourceFileLoader:
            return None
        if spec.origin is None or not self._is_program(spec.origin):
            return None
        spec.loader = _Loader(name, spec.loader.path, self._builtins)
        return spec

    def _is_program(self, path: str) -> bool:
        path = os.path.realpath(path)
        if _INSTALLED_FOLDERS.intersection(path.split(os.sep)) or path.startswith(tuple(self._excluded)):
            return False
        return path.startswith(tuple(self._folders))


def _main_module(program_builtins: dict[str, Any], **attributes: Any) -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=program_builtins, **attributes)
    sys.modules["__main__"] = main
    return main


def _load_script(path: str, program_builtins: dict[str, Any]) -> tuple[CodeType, ModuleType]:
    with open(path, "rb") as script:
        code = compile(script.read(), path, "exec")
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    return code, _main_module(program_builtins, __file__=path, __loader__=loader, __spec__=None, __package__=None)


def _load_module(name: str, program_builtins: dict[str, Any]) -> tuple[CodeType, ModuleType]:
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(name + ".__main__")
    get_code = None if spec is None else getattr(spec.loader, "get_code", None)
    code = None if spec is None or get_code is None else get_code(spec.name)
    if spec is None or spec.origin is None or code is None:
        raise ImportError(f"no module named {name!r} that can be run")
    sys.argv[0] = spec.origin
    return code, _main_module(
        program_builtins, __file__=spec.origin, __loader__=spec.loader, __spec__=spec, __package__=spec.parent
    )


def _load_code(text: str, program_builtins: dict[str, Any]) -> tuple[CodeType, ModuleType]:
    return compile(text, "<string>", "exec"), _main_module(program_builtins, __spec__=None, __package__=None)


def _explain(error: BaseException, folders: Sequence[str]) -> str:
    """Explains why a module does not find a name of TensorFlow 1; empty if the error is another one.

    Args:
      error: The exception that ended the program.
      folders: The folders whose modules see TensorFlow 1.
    """
    real, trace = sys.modules.get("tensorflow"), error.__traceback__
    if real is None or trace is None or not isinstance(error, AttributeError) or error.obj is not real:
        return ""
    if error.name is None or not hasattr(real.compat.v1, error.name):
        return ""
    while trace.tb_next is not None:  # Stop at the module that asked for the name: frames of TensorFlow may follow.
        if trace.tb_next.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "tensorflow":
            break
        trace = trace.tb_next
    below = " and ".join(dict.fromkeys(map(os.path.realpath, folders)))
    return (
        f"lockstep: under --tf1 the modules below {below} see TensorFlow 1, apart from installed packages; "
        f"{trace.tb_frame.f_code.co_filename} is not one of them and sees TensorFlow {real.__version__}, which has no "
        f"tf.{error.name}. Start the job in a folder above that module: modules below the working directory count. "
        "Or have the module import tensorflow.compat.v1"
    )


def _explain_at_end(folders: Sequence[str]) -> None:
    """Prints the explanation after the traceback with which the program ends."""
    former = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        former(kind, error, trace)
        if text := _explain(error, folders):
            print(text, file=sys.stderr)

    sys.excepthook = tell


_Load = Callable[[str, dict[str, Any]], tuple[CodeType, ModuleType]]
_LOADS: dict[str, _Load] = {"-m": _load_module, "-c": _load_code}


def main() -> None:
    """Runs the program that `sys.argv` names, as the interpreter would.

    Raises:
      SystemExit: no program is named, or it cannot be read, or the program raises it.
    """
    arguments = sys.argv[1:]
    kind = arguments.pop(0) if arguments[:1] and arguments[0] in _LOADS else None
    if not arguments:
        raise SystemExit(_USAGE)
    program = arguments[0]
    program_builtins = {**builtins.__dict__, "__import__": _import}
    # `python -m` puts the working directory first on the module path, as -m and -c need it. A script needs its own
    # folder.
    folder = os.getcwd() if kind else os.path.dirname(os.path.realpath(program))
    if not kind:
        if not os.path.isfile(program):
            raise SystemExit(f"lockstep.launch.tf1: no script {program!r}")
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = folder
    sys.meta_path.insert(0, ProgramFinder([folder, os.getcwd()], program_builtins))
    _explain_at_end([folder, os.getcwd()])
    sys.argv = [kind or program, *arguments[1:]]
    load = _load_script if kind is None else _LOADS[kind]
    code, module = load(program, program_builtins)
    exec(code, module.__dict__)


if __name__ == "__main__":
    main()
