"""Tests of choosing the libraries for the installed TensorFlow and pyarrow."""

import types
from pathlib import Path

import pytest

from lockstep._src.engine import libraries

HERE = Path("/env/tensorflow")


@pytest.fixture
def installation(monkeypatch, tmp_path):
    """Makes an installation with libraries for three TensorFlows and two pyarrows, all of them empty files."""
    folder = tmp_path / "lockstep"
    folder.mkdir()
    names = ["tf2.15", "tf2.16", "tf2.21", "arrow25", "arrow26"]
    for name in names:
        (folder / f"liblockstep_{name}.so").touch()
    fake = types.SimpleNamespace(
        __file__=str(folder / "_build_info.py"),
        TENSORFLOW_VERSIONS=["2.15.1", "2.16.2", "2.21.0"],
        PYARROW_MAJORS=(25, 26),
    )
    monkeypatch.setattr(libraries.importlib, "import_module", lambda name: fake)
    return folder


def pyarrow(tmp_path, version, suffix):
    """Makes a folder with a pyarrow of this version, and returns it."""
    package = tmp_path / "site" / "pyarrow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('nobody may import this')")
    for part in ("arrow", "arrow_compute", "arrow_acero", "arrow_dataset", "parquet", "arrow_flight"):
        (package / f"lib{part}.so.{suffix}").touch()
    described = package.parent / f"pyarrow-{version}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pyarrow\nVersion: {version}\n")
    return package.parent


@pytest.mark.parametrize(
    ("version", "name"),
    [("2.15.1", "tf2.15"), ("2.15.0", "tf2.15"), ("2.21.0", "tf2.21"), ("2.21.1-rc0", "tf2.21")],
)
def test_the_minor_version_of_tensorflow_chooses(installation, version, name):
    assert libraries.op_library(version, HERE) == installation / f"liblockstep_{name}.so"


@pytest.mark.parametrize("version", ["2.14.1", "2.2.0", "2.22.0", "3.15.0", "2.17.0"])
def test_another_tensorflow_is_one_error_that_names_both_and_says_what_to_do(installation, version):
    expected = (
        rf"against TensorFlow 2\.15, 2\.16 or 2\.21, but TensorFlow {version} is imported \(from {HERE}\).*pip install"
    )
    with pytest.raises(ImportError, match=expected):
        libraries.op_library(version, HERE)


def test_a_library_that_is_gone_is_named(installation):
    (installation / "liblockstep_tf2.16.so").unlink()
    with pytest.raises(ImportError, match=rf"{installation}/liblockstep_tf2\.16\.so is missing.*pip install"):
        libraries.op_library("2.16.2", HERE)


def test_a_package_that_was_never_built_says_so(monkeypatch):
    def fail(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(libraries.importlib, "import_module", fail)
    with pytest.raises(ImportError, match=r"not built in this environment.*pip install"):
        libraries.op_library("2.21.0", HERE)


@pytest.mark.parametrize(("version", "suffix", "major"), [("25.0.1", "2500", 25), ("26.0.1", "2600", 26)])
def test_the_major_version_of_pyarrow_chooses_and_its_libraries_come_first(
    installation, tmp_path, version, suffix, major
):
    site = pyarrow(tmp_path, version, suffix)
    place = libraries.arrow_place([str(site)])
    assert place.library == installation / f"liblockstep_arrow{major}.so"
    parts = ["arrow", "arrow_compute", "parquet", "arrow_acero", "arrow_dataset"]
    assert place.needed == tuple(site / "pyarrow" / f"lib{part}.so.{suffix}" for part in parts)


def test_another_pyarrow_is_named_with_its_folder_and_what_to_install(installation, tmp_path):
    site = pyarrow(tmp_path, "20.0.0", "2000")
    place = libraries.arrow_place([str(site)])
    assert place.library is None
    assert place.missing == (
        f"Parquet and ORC input: pyarrow 20.0.0 is installed (in {site}/pyarrow), wanted 25 or 26: "
        'pip install "pyarrow>=25,<27"'
    )


def test_a_pyarrow_without_arrows_library_is_another_one(installation, tmp_path):
    site = pyarrow(tmp_path, "26.0.1", "2600")
    (site / "pyarrow" / "libarrow.so.2600").unlink()
    assert "pyarrow 26.0.1 is installed" in libraries.arrow_place([str(site)]).missing


def test_no_pyarrow_is_named(installation, tmp_path):
    place = libraries.arrow_place([str(tmp_path)])
    assert place.library is None
    assert "needs pyarrow, but none is installed" in place.missing
    assert 'pip install "pyarrow>=25,<27"' in place.missing


def test_a_missing_library_for_arrow_is_named(installation, tmp_path):
    (installation / "liblockstep_arrow26.so").unlink()
    place = libraries.arrow_place([str(pyarrow(tmp_path, "26.0.1", "2600"))])
    assert f"{installation}/liblockstep_arrow26.so is missing" in place.missing


def test_the_versions_are_one_line(installation):
    assert libraries.described() == "TensorFlow 2.15.1, 2.16.2 or 2.21.0, pyarrow 25 or 26"
    libraries._build_info().TENSORFLOW_VERSIONS[1:] = []
    assert libraries.described() == "TensorFlow 2.15.1, pyarrow 25 or 26"


def test_a_range_of_versions_is_named_by_its_ends(installation):
    libraries._build_info().TENSORFLOW_VERSIONS[2:] = ["2.17.1", "2.18.1"]
    with pytest.raises(ImportError, match=r"against TensorFlow 2\.15 to 2\.18, but TensorFlow 2\.21\.0"):
        libraries.op_library("2.21.0", HERE)


def test_the_library_for_gpus_lies_beside_the_op_library_unless_the_environment_names_another(installation):
    missing = libraries.device_place({})
    assert missing.library is None
    assert f"{installation}/liblockstep_cuda13.so" in missing.missing and "make gpu" in missing.missing
    (installation / "liblockstep_cuda13.so").touch()
    assert libraries.device_place({}) == libraries.DevicePlace(installation / "liblockstep_cuda13.so")
    named = libraries.device_place({"LOCKSTEP_DEVICE_LIBRARY": "/tests/liblockstep_emulated.so"})
    assert named == libraries.DevicePlace(Path("/tests/liblockstep_emulated.so"))


def test_nccl_lies_in_a_wheel_of_any_folder_of_the_search(tmp_path):
    search = [str(tmp_path / name) for name in ("other", "site", "last")]
    # Wheels of NVIDIA share a namespace package, which may have a part in each folder.
    (tmp_path / "other" / "nvidia" / "cudnn").mkdir(parents=True)
    folder = tmp_path / "site" / "nvidia" / "nccl" / "lib"
    folder.mkdir(parents=True)
    assert libraries.nccl_place({}, search) == libraries.NcclPlace("", None)
    (folder / "libnccl.so.2").touch()
    assert libraries.nccl_place({}, search) == libraries.NcclPlace("", folder)
    assert libraries.nccl_place({"LOCKSTEP_NCCL": "/opt/libnccl.so.2"}, search[:1]).file == "/opt/libnccl.so.2"
    assert libraries.nccl_place({}, []) == libraries.NcclPlace("", None)
