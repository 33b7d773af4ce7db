#!/usr/bin/env bash
# Runs the Python tests. Tests of a single process come first, as many at a time as there are cores. Tests that start
# workers follow, with half as many again at a time: workers wait for each other and for deadlines, so as many jobs as
# there are cores leave half of them idle. conftest.py distinguishes both kinds.
#
# Usage: tools/test_python.sh [arguments of pytest]
# Reads: VENV (the environment's folder), JOBS (cores), CASES, TURN and TURNS_OF: of each "test" or of each "file", every
# CASES-th case, beginning with number TURN.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Thousands of processes import the same modules: the first one compiles them for all.
unset PYTHONDONTWRITEBYTECODE

none_found=5 # pytest's exit code: a request may select tests of only one kind
status=$none_found
run() {
  "$VENV/bin/python" -m pytest --timeout=600 --every "${CASES:-1}" --turn "${TURN:-0}" --turns-of "${TURNS_OF:-test}" "$@"
  local code=$?
  [ $code -ne 2 ] || exit $code # interrupted
  if [ $status -eq $none_found ] || { [ $status -eq 0 ] && [ $code -ne $none_found ]; }; then status=$code; fi
}

# Each parallel process loads TensorFlow, about 1 GiB. So does each worker; a test has up to four of them.
run --processes=one --numprocesses="$JOBS" --maxprocesses=4 --dist=loadfile "$@"
run --processes=several --numprocesses=$((JOBS + (JOBS + 1) / 2)) --maxprocesses=3 --dist=loadfile \
  --no-loadscope-reorder "$@"
exit $status
