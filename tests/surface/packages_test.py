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
# Folders of distributions whose package has another name.
_PACKAGES = {"sok": "sparse_operation_kit"}


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


@pytest.mark.parametrize("name", ["lockstep", *FACADES])
def test_a_wheel_has_every_module_types_and_license_and_no_test(tmp_path, name):
    folder = ROOT / "python" / ("" if name == "lockstep" else name)
    files = _files_of_wheel(ROOT if name == "lockstep" else folder, tmp_path)
    package = _PACKAGES.get(name, name)
    assert not [name for name in files if _is_for_tests(name)]
    modules = {str(path.relative_to(folder)) for path in (folder / package).rglob("*.py")}
    assert {name for name in modules if not _is_for_tests(name)} <= files
    assert f"{package}/py.typed" in files
    assert [name for name in files if name.endswith(".dist-info/licenses/LICENSE")]


def _pins(file: Path) -> dict[str, str]:
    words = (line.partition(";")[0].strip().partition("==") for line in file.read_text().splitlines() if "==" in line)
    return {name.lower().replace("_", "-"): version for name, _, version in words}


REQUIREMENTS = sorted((ROOT / "requirements").glob("tf-*.txt"))


@pytest.mark.parametrize("requirements", REQUIREMENTS, ids=lambda path: path.stem)
def test_a_lock_has_the_pins_of_its_requirements(requirements):
    pins, locked = _pins(requirements), _pins(requirements.with_suffix(".lock"))
    if (keras_2 := ROOT / "requirements" / f"tf_keras-{pins['tensorflow-cpu']}.txt").exists():
        pins |= _pins(keras_2)
    assert pins["tensorflow-cpu"] == requirements.stem.removeprefix("tf-")
    assert {name: locked.get(name) for name in pins} == pins


def test_the_environment_has_one_tensorflow():
    # Two packages with the same files: the one that was installed last is imported, whatever pip lists.
    assert len(metadata.packages_distributions()["tensorflow"]) == 1


def test_each_minor_version_of_tensorflow_has_requirements():
    minors = [path.stem.removeprefix("tf-").rpartition(".")[0] for path in REQUIREMENTS]
    assert minors == [f"2.{minor}" for minor in range(15, 22)]


def test_the_declared_pyarrows_are_those_of_the_requirements():
    majors = sorted({int(_pins(path)["pyarrow"].partition(".")[0]) for path in REQUIREMENTS})
    assert f"pyarrow>={majors[0]},<{majors[-1] + 1}" in MAIN["dependencies"]
    assert majors == list(range(majors[0], majors[-1] + 1))
    page = (ROOT / "docs" / "install.md").read_text()
    assert f"| pyarrow | {' or '.join(map(str, majors))} |" in page
