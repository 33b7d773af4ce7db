#!/usr/bin/env bash
# Runs each fuzz target for a number of seconds: the core's with libFuzzer, and Python's. Ends with a line for each.
# libFuzzer's interesting inputs are in build/fuzz-corpus, and the next run continues from them. An input on which a
# target died is there as <target>-crash-...; pass it to the target as an argument to read it again.
#
# Usage: tools/fuzz.sh FOLDER SECONDS  (FOLDER: a build with LOCKSTEP_BUILD_FUZZERS)
# Reads: VENV (the environment's folder).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$1
seconds=$2
corpora=build/fuzz-corpus
# Arrow's libraries are not instrumented, so instrumented code would misjudge the size of their containers. The memory of
# malloc is checked; that of Arrow's own pool is not.
export ASAN_OPTIONS=detect_container_overflow=0 ARROW_DEFAULT_MEMORY_POOL=system
code=0

for target in "$folder"/core/*/*_fuzz; do
  name=$(basename "$target")
  mkdir -p "$corpora/$name"
  # Leaks are searched for at the end. A search after each input would report recent allocations of a target's threads.
  if "$target" -detect_leaks=0 -max_total_time="$seconds" -timeout=20 -malloc_limit_mb=1024 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="$corpora/$name-" "$corpora/$name" >"$corpora/$name.log" 2>&1; then
    sed -n "s/^Done \([0-9]*\) runs in \([0-9]*\) second.*/$name: \1 inputs in \2 s, no finding/p" "$corpora/$name.log"
  else
    code=1
    tail -n 60 "$corpora/$name.log"
    echo "$name: FINDING, see above and $corpora/$name.log"
  fi
done
LOCKSTEP_FUZZ_SECONDS=$seconds "$VENV/bin/python" -m pytest -q -s --no-header \
  $(git ls-files 'python/*hostile_input_test.py' 'python/*/damaged_test.py' 'examples/*hostile_requests_test.py') >"$corpora/python.log" 2>&1 || code=1
grep -aoE 'fuzz .*|^E  .*|^FAILED.*|[0-9]+ (passed|failed).*' "$corpora/python.log"
exit $code
