"""The libraries of this installation: which one fits the installed TensorFlow, and which one the installed pyarrow.

They lie beside `lockstep/_build_info.py`, which the build writes. A wheel carries an op library for each minor version
of TensorFlow and a library for Arrow for each major version of pyarrow. A build from sources has one of each, and with
`make gpu` the library for GPUs. Neither TensorFlow nor pyarrow is imported here.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.machinery
import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

_REBUILD = "pip install --no-build-isolation --force-reinstall --no-deps lockstep-tf (or, in its source tree, ... -e .)"
# The parts of pyarrow that the library for Arrow needs, each after those that it needs itself.
_PARTS_OF_ARROW = ("arrow", "arrow_compute", "parquet", "arrow_acero", "arrow_dataset")
_DEVICE_LIBRARY = "liblockstep_cuda13.so"
# Another file in its place, such as the emulated one: for tests.
DEVICE_LIBRARY = "LOCKSTEP_DEVICE_LIBRARY"
# The path of libnccl.so.2.
NCCL = "LOCKSTEP_NCCL"


def op_library(tensorflow_version: str, tensorflow_folder: Path) -> Path:
    """Returns the op library for the minor version of this TensorFlow, which is imported from the folder.

    Raises:
      ImportError: there is none; the message names the versions that there are, and says what to do.
    """
    build_info = _build_info()
    built = [_minor(version) for version in build_info.TENSORFLOW_VERSIONS]
    wanted = _minor(tensorflow_version)
    if wanted not in built:
        raise ImportError(
            f"lockstep's op library is built against TensorFlow {_range(built)}, but TensorFlow {tensorflow_version} "
            f"is imported (from {tensorflow_folder}). Install another TensorFlow: pip install "
            f'"tensorflow-cpu=={built[-1]}.*", or build lockstep for this one: {_REBUILD}'
        )
    path = _folder_of(build_info) / f"liblockstep_tf{wanted}.so"
    if not path.is_file():
        raise ImportError(f"lockstep's op library {path} is missing although it was built. Build it again: {_REBUILD}")
    return path


@dataclasses.dataclass(frozen=True)
class ArrowPlace:
    """The place of the library for Arrow, as core/columnar/files/arrow_library.h describes it.

    Attributes:
      library: The file; None if there is none for the installed pyarrow.
      needed: Files of pyarrow, in the order in which they are loaded before it.
      missing: Without a library: the reason, and what to do.
    """

    library: Path | None
    needed: tuple[Path, ...] = ()
    missing: str = ""


def arrow_place(search: Iterable[str] | None = None) -> ArrowPlace:
    """Returns the place of the library for the pyarrow that is installed in a folder of `search`, or of `sys.path`."""
    build_info = _build_info()
    majors = build_info.PYARROW_MAJORS
    advice = f'wanted {_range(majors)}: pip install "pyarrow>={majors[0]},<{majors[-1] + 1}"'
    spec = importlib.machinery.PathFinder.find_spec("pyarrow", None if search is None else list(search))
    if spec is None or not spec.submodule_search_locations:
        return ArrowPlace(None, missing=f"Parquet and ORC input needs pyarrow, but none is installed; {advice}")
    folder = Path(next(iter(spec.submodule_search_locations)))
    # The name carries the version of the binary interface: 2600 for 26.
    found = sorted(path.name for path in folder.glob("libarrow.so.*"))
    suffix = found[0].removeprefix("libarrow.so.") if found else ""
    major = int(suffix[:-2]) if re.fullmatch(r"\d{3,}", suffix) else None
    if major not in majors:
        version = _pyarrow_version(folder) or f"with {found[0] if found else 'no libarrow.so'}"
        return ArrowPlace(
            None, missing=f"Parquet and ORC input: pyarrow {version} is installed (in {folder}), {advice}"
        )
    library = _folder_of(build_info) / f"liblockstep_arrow{major}.so"
    if not library.is_file():
        why = f"Parquet and ORC input: {library} is missing although it was built. Build it again: {_REBUILD}"
        return ArrowPlace(None, missing=why)
    needed = (folder / f"lib{part}.so.{suffix}" for part in _PARTS_OF_ARROW)
    return ArrowPlace(library, tuple(path for path in needed if path.exists()))


@dataclasses.dataclass(frozen=True)
class DevicePlace:
    """The place of the library for GPUs, as core/device/load.h describes it.

    Attributes:
      library: The file; None if there is none.
      missing: Without a library: the reason, and what to do.
    """

    library: Path | None
    missing: str = ""


def device_place(environ: Mapping[str, str]) -> DevicePlace:
    """Returns the place of the library for GPUs: beside the op library, unless `LOCKSTEP_DEVICE_LIBRARY` names it."""
    if named := environ.get(DEVICE_LIBRARY):
        return DevicePlace(Path(named))
    library = _folder_of(_build_info()) / _DEVICE_LIBRARY
    if library.is_file():
        return DevicePlace(library)
    return DevicePlace(None, f"the library for GPUs is not built ({library}); build it in lockstep's sources: make gpu")


@dataclasses.dataclass(frozen=True)
class NcclPlace:
    """Where NCCL may lie, as core/device/comm/nccl_api.h describes it.

    Attributes:
      file: The path that `LOCKSTEP_NCCL` names; "" without one.
      folder: The folder of the wheel nvidia-nccl-cu12 or nvidia-nccl-cu13 with the library; None without one.
    """

    file: str
    folder: Path | None


def nccl_place(environ: Mapping[str, str], search: Iterable[str] | None = None) -> NcclPlace:
    """Returns the places of NCCL: the environment's, and the wheel's in a folder of `search`, or of `sys.path`."""
    spec = importlib.machinery.PathFinder.find_spec("nvidia", None if search is None else list(search))
    folders = (Path(path) / "nccl" / "lib" for path in (spec and spec.submodule_search_locations) or ())
    found = next((folder for folder in folders if (folder / "libnccl.so.2").exists()), None)
    return NcclPlace(environ.get(NCCL, ""), found)


def described() -> str:
    """Returns "TensorFlow 2.20.0 or 2.21.0, pyarrow 25 or 26": the versions against which the libraries were built."""
    build_info = _build_info()
    return f"TensorFlow {_list(build_info.TENSORFLOW_VERSIONS)}, pyarrow {_list(build_info.PYARROW_MAJORS)}"


def _build_info() -> ModuleType:
    try:
        return importlib.import_module("lockstep._build_info")
    except ModuleNotFoundError as e:
        raise ImportError(f"lockstep's op library is not built in this environment. Build it: {_REBUILD}") from e


def _folder_of(module: ModuleType) -> Path:
    return Path(str(module.__file__)).parent


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _range(versions: Iterable[object]) -> str:
    """Returns "2.15 to 2.21" for versions without a gap, else "2.15, 2.17 or 2.21"."""
    texts = [str(version) for version in versions]
    numbers = [int(text.rpartition(".")[2]) for text in texts]
    if len(texts) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{texts[0]} to {texts[-1]}"
    return _list(texts)


def _list(versions: Iterable[object]) -> str:
    """Returns "2.15, 2.17 or 2.21"."""
    *most, last = map(str, versions)
    return f"{', '.join(most)} or {last}" if most else last


def _pyarrow_version(folder: Path) -> str | None:
    for distribution in importlib.metadata.distributions(name="pyarrow", path=[str(folder.parent)]):
        return distribution.version
    return None
