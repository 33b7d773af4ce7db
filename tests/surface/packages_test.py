"""The distributions agree with each other, and have what users need and no test."""

import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import yaml

import lockstep

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where the build brings the same under this name.
    import tomli as tomllib

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

ROOT = Path(__file__).resolve().parents[2]
MAIN = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FACADES = {
    path.parent.name: tomllib.loads(path.read_text())["project"] for path in ROOT.glob("python/*/pyproject.toml")
}


def test_the_package_has_the_version_of_its_distribution():
    assert lockstep.__version__ == metadata.version("lockstep-tf") == MAIN["version"]
    assert "__version__" in dir(lockstep)


def test_citation_and_changelog_name_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == MAIN["version"]
    assert citation["license"] == MAIN["license"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert newest[1] == MAIN["version"]


@pytest.mark.parametrize("facade", FACADES)
def test_a_facade_is_an_extra_and_needs_the_library_of_its_own_version(facade):
    project = FACADES[facade]
    version = MAIN["version"]
    assert f"lockstep-tf=={version}" in project["dependencies"]
    assert MAIN["optional-dependencies"][facade] == [f"lockstep-{facade}=={version}"]
    for key in ("version", "requires-python", "license", "license-files", "classifiers"):
        assert project[key] == MAIN[key], key


def _files_of_wheel(source: Path, folder: Path) -> set[str]:
    """Builds a distribution without its C++ part, and returns the names of the wheel's files."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--config-settings", "wheel.cmake=false", "--wheel-dir", str(folder), str(source)]
    subprocess.run(command, check=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def _is_for_tests(name: str) -> bool:
    return name.endswith(("_test.py", "conftest.py")) or "/testing/" in name


@pytest.mark.parametrize(("source", "package"), [(".", "lockstep"), *((f"python/{name}", name) for name in FACADES)])
def test_a_wheel_has_every_module_types_and_license_and_no_test(tmp_path, source, package):
    files = _files_of_wheel(ROOT / source, tmp_path)
    assert not [name for name in files if _is_for_tests(name)]
    folder = ROOT / "python" / ("" if package == "lockstep" else package)
    modules = {str(path.relative_to(folder)) for path in (folder / package).rglob("*.py")}
    assert {name for name in modules if not _is_for_tests(name)} <= files
    assert f"{package}/py.typed" in files
    assert [name for name in files if name.endswith(".dist-info/licenses/LICENSE")]
