"""Gets headers and libraries of TensorFlow and pyarrow from their wheels, a folder for each version.

Usage: unpack_headers.py FOLDER REQUIREMENT ...   such as build/headers tensorflow-cpu==2.16.2 pyarrow==26.0.1

It prints the folders of the packages, one a line. A version that is there already is not fetched again. Installing a
TensorFlow would take 1 GB and a minute more.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# The headers are the same for all Pythons, and all versions have wheels for this one.
_PYTHON = "3.11"


def _is_needed(name: str) -> bool:
    parts = name.split("/")
    if parts[0].endswith(".dist-info"):
        return parts[1:] in (["METADATA"], ["RECORD"])
    return len(parts) > 1 and (parts[1] == "include" or (parts[1].startswith("lib") and ".so." in parts[1]))


def unpack(folder: Path, requirement: str) -> Path:
    """Returns the folder of the package of a requirement, below `folder`."""
    package = requirement.partition("==")[0].partition("-")[0]
    target = folder / requirement.replace("==", "-")
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
            subprocess.run([*command, f"--python-version={_PYTHON}", "-d", scratch, requirement], check=True)
            (wheel,) = Path(scratch).glob("*.whl")
            unpacked = Path(scratch) / "unpacked"
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked, [name for name in archive.namelist() if _is_needed(name)])
            unpacked.rename(target)
    return target / package


if __name__ == "__main__":
    to, *requirements = sys.argv[1:]
    Path(to).mkdir(parents=True, exist_ok=True)
    for each in requirements:
        print(unpack(Path(to).resolve(), each))
