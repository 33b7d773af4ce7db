#!/usr/bin/env bash
# Creates the parts that a target needs, if they are missing or out of date:
# - a virtual environment with the pinned packages;
# - the op library, built against its TensorFlow and installed into it together with the façades (Python files are then
#   taken from this tree), and after it the stand-in device of tests;
# - a CUDA compiler in .venv-cuda13, if the system has none;
# - Debian's packages for C++ tests, benchmarks and checks.
#
# Usage: tools/setup.sh
#   compiler|cuda|core|python|ops|standin|tests|hosts|spark|ray|kubernetes|mlflow|bench|tfra|peers|lint|docs|fuzz ...
# Reads: PYTHON (which python3 makes the environment), TF (version), VENV (the environment's folder), JOBS, WERROR (ON: a
# new build of the op library takes warnings as errors).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON="${PYTHON:-python3}"
TF="${TF:-2.21.0}"
VENV="$(realpath -m "${VENV:-.venv-tf$TF}")"
BUILD="build/tf-$TF"
export CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}"
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '== %s\n' "$*" >&2; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# debian_packages NAME...: installs the packages, or prints which to install.
debian_packages() {
  local missing=() name
  for name in "$@"; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return
  command -v apt-get >/dev/null || die "missing: ${missing[*]} (Debian's names); install them with your system's packages"
  [ "$(id -u)" -eq 0 ] || die "missing packages; run: sudo apt-get install -y ${missing[*]}"
  say "apt-get install ${missing[*]}"
  apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null 2>&1 || {
    apt-get update -q >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
  }
}

# stamped NAME FILE...: true if stamp NAME was made from files with the same contents.
stamped() {
  local stamp="$VENV/.lockstep-$1"
  shift
  [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(cat "$@" | cksum)" ]
}
stamp() {
  local stamp="$VENV/.lockstep-$1"
  shift
  cat "$@" | cksum >"$stamp"
}

# module_names: the Python files that an editable install maps to modules; their contents don't matter to it.
module_names() { find python -name '*.py' -not -name '*_test.py' | LC_ALL=C sort; }

requirements=(requirements/build.txt "requirements/tf-$TF.txt" "requirements/tf-$TF.lock")
# Before Keras 3, TensorFlow brings Keras 2 itself.
[ ! -f "requirements/tf_keras-$TF.txt" ] || requirements+=("requirements/tf_keras-$TF.txt")

make_empty_environment() {
  [ -f "${requirements[1]}" ] || die "TF=$TF is not supported; there is: $(cd requirements && echo tf-*.txt)"
  [ ! -x "$VENV/bin/pip" ] || return 0
  command -v "$PYTHON" >/dev/null || die "no $PYTHON; install python3"
  "$PYTHON" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' ||
    die "$PYTHON is $("$PYTHON" -V), wanted 3.10 to 3.13: set PYTHON"
  # Debian has the part of venv that installs pip in a separate package.
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || debian_packages python3-venv
  say "virtual environment $VENV"
  "$PYTHON" -m venv "$VENV"
}

# The parts of the environment that building the core needs.
make_core_environment() {
  stamped requirements "${requirements[@]}" && return
  make_empty_environment
  "$VENV/bin/pip" install -q $(grep -hE '^(cmake|ninja|pyarrow)==' "${requirements[@]:0:2}")
}

make_environment() {
  stamped requirements "${requirements[@]}" && return
  make_empty_environment
  say "pip install: TensorFlow $TF and tools"
  "$VENV/bin/pip" install -q -r "${requirements[0]}" -r "${requirements[1]}" -c "${requirements[2]}"
  [ -z "${requirements[3]:-}" ] || "$VENV/bin/pip" install -q --no-deps -r "${requirements[3]}"
  stamp requirements "${requirements[@]}"
}

site_packages() { "$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# The packages that every build needs.
need_compiler() {
  command -v g++ >/dev/null && [ -f "$(g++ -print-file-name=libcrypto.a)" ] &&
    printf '#include <%s>\n' gloo/config.h openssl/evp.h | g++ -x c++ -fsyntax-only - 2>/dev/null ||
    debian_packages g++ libgloo-dev libssl-dev
}

# The system's nvcc serves if it is of CUDA 13. cmake/Cuda.cmake looks in the same places.
make_cuda() {
  local pins=requirements/cuda.txt nvcc
  for nvcc in ${CUDA_HOME:+"$CUDA_HOME/bin/nvcc"} "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
    [ -x "$nvcc" ] && "$nvcc" --version | grep -q 'release 13\.' && return
  done
  [ -f .venv-cuda13/made ] && cmp -s .venv-cuda13/made "$pins" && return
  say "pip install: the CUDA compiler"
  make_empty_environment
  rm -rf .venv-cuda13
  "$VENV/bin/pip" install -q --no-deps --target .venv-cuda13 -r "$pins" && cp "$pins" .venv-cuda13/made
}

# The first build uses pip, and so do builds after a change of the build files or after Python files came, went or moved:
# an editable install knows each module by its path. In all other cases Ninja decides what to compile.
make_ops() {
  need_compiler
  mkdir -p build
  module_names >build/modules.txt
  local described=(VERSION pyproject.toml "requirements/tf-$TF.lock" python/*/pyproject.toml build/modules.txt)
  if ! stamped install "${described[@]}" || [ ! -f "$BUILD/build.ninja" ]; then
    say "op library for TensorFlow $TF"
    "$VENV/bin/pip" install -q --no-build-isolation --no-deps -e . --config-settings "build-dir=$BUILD" \
      --config-settings install.strip=false --config-settings "cmake.define.LOCKSTEP_WERROR=${WERROR:-OFF}"
    local facade facades=()
    for facade in python/*/pyproject.toml; do facades+=(-e "$(dirname "$facade")"); done
    "$VENV/bin/pip" install -q --no-build-isolation --no-deps "${facades[@]}"
    stamp install "${described[@]}"
  else
    "$VENV/bin/cmake" --build "$BUILD" --target lockstep_ops -- --quiet
    "$VENV/bin/cmake" --install "$BUILD" --prefix "$(site_packages)" >/dev/null
  fi
}

# The stand-in device of tests, in the build folder of the op library.
make_standin() { "$VENV/bin/cmake" --build "$BUILD" --target lockstep_standin -- --quiet; }

# peer NAME [OPTION...]: the environment of another library that benchmarks measure, in .venv-peers/NAME. pip gets the
# options. Without a peer the benchmarks do without its figures.
peer() {
  local name="$1" wanted="requirements/peers/$1.txt" home=".venv-peers/$1"
  shift
  [ -f "$home/made" ] && cmp -s "$home/made" "$wanted" && return
  say "virtual environment $home"
  "$PYTHON" -m venv --clear "$home" && "$home/bin/pip" install -q -r <(grep -v '^horovod==' "$wanted") "$@" &&
    "$home/bin/pip" install -q --no-build-isolation -r "$wanted" "$@" && cp "$wanted" "$home/made" ||
    say "$name does not install here: benchmarks do without it"
}

# Horovod is built by pip, against the TensorFlow of its environment.
make_horovod() {
  need_compiler
  HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_GLOO=1 \
    HOROVOD_CMAKE="$PWD/.venv-peers/horovod/bin/cmake" MAKEFLAGS="-j$CMAKE_BUILD_PARALLEL_LEVEL" peer horovod
}

# optional NAME: packages for the tests of one place to run; without them these tests are skipped. They may not change the
# environment's own packages.
optional() {
  local wanted="requirements/$1.txt"
  stamped "$1" "$wanted" && return
  say "pip install: $(grep -v '^#' "$wanted" | paste -sd' ')"
  "$VENV/bin/pip" install -q -r "$wanted" -c "${requirements[2]}" && stamp "$1" "$wanted" ||
    say "$wanted does not install here: the tests of it are skipped"
}

make_spark() {
  command -v java >/dev/null || debian_packages default-jre-headless
  optional spark
}

# The site needs no TensorFlow, and its packages may not change those of the tests.
make_docs() {
  local requirements=requirements/docs.txt
  [ -f .venv-docs/made ] && cmp -s .venv-docs/made "$requirements" && return
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || debian_packages python3-venv
  say "virtual environment .venv-docs"
  "$PYTHON" -m venv .venv-docs && .venv-docs/bin/pip install -q -r "$requirements" && cp "$requirements" .venv-docs/made ||
    die "the packages of $requirements don't install: see pip's error above"
}

for part in "$@"; do
  case "$part" in
    compiler) need_compiler ;;
    cuda) need_compiler && make_cuda ;;
    core) make_core_environment ;;
    python) make_environment ;;
    ops) make_environment && make_ops ;;
    standin) make_standin ;;
    # The core is part of several builds, which ccache compiles once; without it they take longer.
    tests)
      need_compiler && debian_packages libgtest-dev libgmock-dev
      [ "$(id -u)" -ne 0 ] || debian_packages ccache
      ;;
    # Only root can create hosts; for other users the tests report this.
    hosts) [ "$(id -u)" -ne 0 ] || debian_packages iproute2 ;;
    bench) need_compiler && debian_packages libbenchmark-dev ;;
    tfra) peer tfra ;;
    peers) peer tfra && peer torchrec --no-deps && make_horovod ;;
    spark) make_environment && make_spark ;;
    ray | kubernetes | mlflow) make_environment && optional "$part" ;;
    docs) make_docs ;;
    lint) debian_packages clang-format clang-tidy libbenchmark-dev ;;
    fuzz) need_compiler && debian_packages clang libclang-rt-dev ;;
    *) die "unknown part '$part'" ;;
  esac
done
