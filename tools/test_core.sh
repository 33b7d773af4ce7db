#!/usr/bin/env bash
# Runs the core's tests, which must be built. They mostly wait, for deadlines and for each other, so more of them run at
# a time than there are cores.
#
# Usage: tools/test_core.sh FOLDER FILTER [options of ctest]
# FOLDER is the build folder. FILTER is a pattern of GoogleTest, such as 'Rendezvous*'; empty: all tests run, fuzz targets
# included.
# Reads: VENV (the environment's folder), JOBS (cores).
set -euo pipefail
folder=$1 filter=$2
shift 2

options=(--output-on-failure --no-tests=error -j "$((2 * JOBS))")
if [ -n "$filter" ]; then
  names=()
  shopt -s globstar # folders lie in folders, such as core/columnar/memory
  for binary in "$folder"/core/**/lockstep_*_test; do
    # It lists tests with two spaces in front, below their suites. (grep -q would end the list early, and with it the
    # binary by SIGPIPE: the pipe then failed.)
    if "$binary" --gtest_filter="$filter" --gtest_list_tests | grep '^  ' >/dev/null; then
      name=$(basename "$binary" _test)
      names+=("${name#lockstep_}")
    fi
  done
  if [ ${#names[@]} -eq 0 ]; then
    echo "make test-core: FILTER=$filter: no test of the core has such a name" >&2
    exit 2
  fi
  export GTEST_FILTER="$filter"
  # A folder's tests may run as several processes: name_1, name_2, ...
  options+=(-R "^($(IFS='|' && echo "${names[*]}"))(_[0-9]+)?$")
fi
exec "$VENV/bin/ctest" --test-dir "$folder" "${options[@]}" "$@"
