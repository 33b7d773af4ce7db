"""Packages are found without importing them, with the version of the distribution that brought them."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

_PROGRAM = Path(__file__).with_name("locate.py")


def _distribution(site: Path, name: str, version: str, package: str) -> None:
    described = site / f"{name}-{version}.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (described / "RECORD").write_text(f"{package}/include/header.h,,\n{package}/__init__.py,,\n")
    (site / package / "include").mkdir(parents=True)
    (site / package / "__init__.py").write_text("raise ImportError('nobody may import this')")


def _located(*arguments: str, path: Path) -> str:
    command = [sys.executable, str(_PROGRAM), *arguments]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(path)}, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_the_distribution_with_the_headers_tells_the_version(tmp_path):
    _distribution(tmp_path, "tensorflow_cpu", "2.17.1", "tensorflow")
    _distribution(tmp_path, "tensorflow_estimator", "2.15.0", "tensorflow_estimator")
    _distribution(tmp_path, "tf_keras", "2.17.0", "tf_keras")
    assert _located("tensorflow", path=tmp_path) == f"{tmp_path / 'tensorflow'};2.17.1"


def test_a_given_folder_counts_before_what_is_installed(tmp_path):
    _distribution(tmp_path / "here", "tensorflow_cpu", "2.17.1", "tensorflow")
    _distribution(tmp_path / "there", "tensorflow", "2.20.0", "tensorflow")
    folder = tmp_path / "there" / "tensorflow"
    assert _located("tensorflow", str(folder), path=tmp_path / "here") == f"{folder};2.20.0"


def test_an_isolated_build_finds_the_packages_of_its_environment(tmp_path):
    # As pip's isolation does, which hides the environment's folder from imports.
    hide = "import sys\nsys.path[:] = [path for path in sys.path if not path.endswith('site-packages')]\n"
    (tmp_path / "sitecustomize.py").write_text(hide)
    version = importlib.metadata.version("pyarrow")
    assert _located("pyarrow", path=tmp_path).endswith(f"/pyarrow;{version}")


def test_nothing_is_printed_for_what_is_not_installed(tmp_path):
    assert _located("tensorflow", str(tmp_path / "tensorflow"), path=tmp_path) == ""
