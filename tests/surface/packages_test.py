"""The distributions agree with each other, and have what users need and no test."""

import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from email.message import Message
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
VERSION = (ROOT / "VERSION").read_text().strip()
MAIN = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FACADES = {
    path.parent.name: tomllib.loads(path.read_text())["project"] for path in ROOT.glob("python/*/pyproject.toml")
}
# Folders of distributions whose package has another name.
_PACKAGES = {"sok": "sparse_operation_kit"}


def test_the_package_has_the_version_of_its_distribution():
    assert lockstep.__version__ == metadata.version("lockstep-tf") == VERSION
    assert "__version__" in dir(lockstep)


def test_citation_and_changelog_name_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == VERSION
    assert citation["license"] == MAIN["license"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert newest[1] == VERSION


def test_no_other_file_has_a_version_of_its_own():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    formats = {"CITATION.cff", "CHANGELOG.md", "VERSION"}  # the test above compares them
    sources = [ROOT / name for name in listed.stdout.splitlines() if name not in formats]
    named = re.compile(
        rf"^(?:project\(.*VERSION |__version__ = |version = |lockstep-\w+==).*{re.escape(VERSION)}", re.M
    )
    checked = [path for path in sources if path.suffix in {".toml", ".txt", ".py", ".cfg", ".yml"} and path.is_file()]
    assert checked and not [path for path in checked if named.search(path.read_text())]


def test_there_is_one_license():
    files = [path for path in ROOT.glob("python/*/LICENSE") if path.resolve() != ROOT / "LICENSE"]
    assert (ROOT / "LICENSE").is_file() and not files


@pytest.mark.parametrize("facade", FACADES)
def test_a_facade_declares_what_the_library_declares(facade):
    for key in ("requires-python", "license", "license-files", "classifiers"):
        assert FACADES[facade][key] == MAIN[key], key


def _wheel(source: Path, folder: Path) -> tuple[set[str], Message]:
    """Builds a distribution without its C++ part. Returns the names of the wheel's files, and its metadata."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--config-settings", "wheel.cmake=false", "--wheel-dir", str(folder), str(source)]
    subprocess.run(command, check=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (description,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return set(archive.namelist()), message_from_bytes(archive.read(description))


def _is_for_tests(name: str) -> bool:
    return name.endswith(("_test.py", "conftest.py")) or "/testing/" in name


@pytest.mark.parametrize("name", ["lockstep", *FACADES])
def test_a_wheel_has_every_module_types_license_and_version_and_no_test(tmp_path, name):
    folder = ROOT / "python" / ("" if name == "lockstep" else name)
    files, described = _wheel(ROOT if name == "lockstep" else folder, tmp_path)
    package = _PACKAGES.get(name, name)
    assert not [name for name in files if _is_for_tests(name)]
    modules = {str(path.relative_to(folder)) for path in (folder / package).rglob("*.py")}
    assert {name for name in modules if not _is_for_tests(name)} <= files
    assert f"{package}/py.typed" in files
    assert [name for name in files if name.endswith(".dist-info/licenses/LICENSE")]
    assert described["Version"] == VERSION
    required = described.get_all("Requires-Dist")
    if name == "lockstep":
        wanted = {f'lockstep-{facade}=={VERSION}; extra == "{facade}"' for facade in FACADES}
    else:
        wanted = {f"lockstep-tf=={VERSION}"} | ({f"lockstep-horovod=={VERSION}"} if name == "sok" else set())
    assert {one.replace("'", '"') for one in required if one.startswith("lockstep")} == wanted


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
    # Two packages with the same files: the one that was installed last is imported, regardless of pip's list.
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
