#!/usr/bin/env bash
# Prints which lines of the code for devices the tests execute, without a device: of each file, and of all.
#
# Usage: tools/coverage.sh
# Reads: TF, VENV (the environment's folder, which has the op library), JOBS.
# A build of its own counts the lines. Its op library stands in for the installed one meanwhile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build="build/coverage-tf-$TF" home=.venv-coverage
[ -x "$home/bin/gcovr" ] || { "$VENV/bin/python" -m venv "$home" && "$home/bin/pip" install -q -r requirements/coverage.txt; }

# Workers leave by _exit, which does not write the counts.
mkdir -p "$build"
exits="$PWD/$build/at_exit"
gcc -O1 -fPIC -c tools/coverage/register.c -o "$exits.o"
gcc -O1 -fPIC -shared tools/coverage/at_exit.c -o "$exits.so"
[ -f "$build/build.ninja" ] || "$VENV/bin/cmake" -S . -B "$build" -G Ninja >/dev/null \
  "-DCMAKE_MAKE_PROGRAM=$(realpath "$VENV/bin/ninja")" "-DPython3_EXECUTABLE=$(realpath -s "$VENV/bin/python")" \
  -DLOCKSTEP_BUILD_TESTS=ON -DLOCKSTEP_BUILD_CUDA=OFF -DCMAKE_BUILD_TYPE=Debug \
  "-DCMAKE_CXX_FLAGS=--coverage -fprofile-update=atomic" \
  "-DCMAKE_EXE_LINKER_FLAGS=$exits.o" "-DCMAKE_MODULE_LINKER_FLAGS=$exits.o"
targets=(lockstep_ops lockstep_standin lockstep_device_check lockstep_{device,device_checks,device_comm,device_named,capi}_test)
"$VENV/bin/cmake" --build "$build" -j "$JOBS" --target "${targets[@]}" -- --quiet
find "$build" -name '*.gcda' -delete

installed=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
trap '"$VENV/bin/cmake" --install "build/tf-$TF" --prefix "$installed" >/dev/null' EXIT
"$VENV/bin/cmake" --install "$build" --prefix "$installed" >/dev/null
status=0
LD_PRELOAD="$exits.so" "$VENV/bin/ctest" --test-dir "$build" -R '^(device|capi)' -j "$JOBS" --output-on-failure || status=$?
LD_PRELOAD="$exits.so" LOCKSTEP_DEVICE_LIBRARY="$PWD/$build/core/device/liblockstep_emulated.so" \
  "$VENV/bin/python" -m pytest -q --timeout=600 tests/standin python/lockstep/_src/engine/devices_test.py tf/bridge || status=$?

"$home/bin/gcovr" --root . --object-directory "$build" --gcov-ignore-parse-errors=all \
  --filter core/device/ --filter tf/device/ --filter tf/comm/device_ --filter tf/bridge/host_memory \
  --exclude '.*_test\.cc' --exclude '.*/conformance/' --exclude '.*/test_tensors\.h' --txt "$build/lines.txt" "$build"/{core,tf,tests}
cat "$build/lines.txt"
exit $status
