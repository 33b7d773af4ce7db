#!/usr/bin/env bash
# Runs the tests of Python: first those of a single process, as many at a time as there are cores, then those that start
# workers, one after the other, since their workers need the cores themselves. conftest.py says which are which.
#
# Usage: tools/test_python.sh [arguments of pytest]
# Reads: VENV (the environment's folder), JOBS (cores).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

none_found=5 # pytest's exit code: what was asked for may have tests of one kind alone
status=$none_found
run() {
  "$VENV/bin/python" -m pytest --timeout=600 "$@"
  local code=$?
  [ $code -ne 2 ] || exit $code # interrupted
  if [ $status -eq $none_found ] || { [ $status -eq 0 ] && [ $code -ne $none_found ]; }; then status=$code; fi
}

# Each process at a time holds a TensorFlow, about 1 GiB.
run --processes=one --numprocesses="$JOBS" --maxprocesses=4 --dist=loadfile "$@"
run --processes=several "$@"
exit $status
