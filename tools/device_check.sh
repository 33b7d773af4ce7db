#!/usr/bin/env bash
# Checks the library for GPUs on this machine's GPU, kernel by kernel, against the CPU's results, and measures it. It
# takes less than 5 minutes.
#
# Usage: tools/device_check.sh [--pack FOLDER] [--programs FOLDER] [--out FOLDER]
#   --pack      only build the programs, and copy them with this script into FOLDER, for another machine
#   --programs  run programs that were packed, and build nothing
#   --out       where device_check.json and the reports go (build/device_check)
# On a machine without this checkout: FOLDER/device_check.sh --programs FOLDER --out FOLDER/out
set -euo pipefail
usage() { sed -n '5,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
pack='' programs='' out=build/device_check
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || usage
  case "$1" in
    --pack) pack=$2 ;;
    --programs) programs=$2 ;;
    --out) out=$2 ;;
    *) usage ;;
  esac
  shift 2
done

library=liblockstep_cuda13.so
if [ -z "$programs" ]; then
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  make --no-print-directory device-check-programs
  programs=build/device_check/programs
fi
if [ -n "$pack" ]; then
  mkdir -p "$pack"
  cp "$programs/lockstep_device_check" "$programs/$library" "$0" "$pack/"
  # The other machine may lack Gloo's library.
  cp "$(ldd "$programs/lockstep_device_check" | awk '/libgloo/ {print $3}')" "$pack/"
  exec du -sh "$pack"
fi

check="$programs/lockstep_device_check"
mkdir -p "$out"
command -v nvidia-smi >/dev/null && nvidia-smi -L || echo "device_check: no nvidia-smi"
failed=0
timeout 150 "$check" "$programs/$library" --json "$out/device_check.json" || failed=$?
[ "$failed" -ne 3 ] || exit 3 # no device
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    echo "== compute-sanitizer $tool"
    timeout 70 compute-sanitizer --tool "$tool" --error-exitcode 9 --log-file "$out/$tool.txt" \
      "$check" "$programs/$library" --small --only checks || failed=$?
    tail -n 1 "$out/$tool.txt"
  done
else
  echo "device_check: no compute-sanitizer: its checks are left out"
fi
exit "$failed"
