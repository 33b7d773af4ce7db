#!/usr/bin/env bash
# Checks the library for GPUs on this machine's GPU, kernel by kernel, against the CPU's results, and measures it. It
# takes less than 5 minutes.
#
# Usage: tools/device_check.sh [--pack FOLDER] [--programs FOLDER] [--out FOLDER]
#   --pack      only copy the programs and this script into FOLDER, for another machine
#   --programs  take the programs of this folder, and build nothing
#   --out       where device_check.json and the reports go (build/device_check)
# On a machine without this checkout: FOLDER/device_check.sh --programs FOLDER --out FOLDER/out
# Reads: LOCKSTEP_NCCL (the path of libnccl.so.2; else NCCL is a wheel of python3, or the system's).
# The exit code is 1 after a failure, 3 without a device, 9 after a finding of compute-sanitizer, 124 or 137 if something
# took too long.
set -euo pipefail
usage() { sed -n '5,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
die() { printf 'device_check: %s\n' "$*" >&2; exit 1; }
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

# The pack runs where only a driver is. Its size is limited so that it can be sent.
most_bytes=$((16 << 20))
if [ -n "$pack" ]; then
  mkdir -p "$pack"
  for file in lockstep_device_check "$library"; do
    cp "$programs/$file" "$pack/"
    strip "$pack/$file"
    others=$(ldd "$pack/$file" | awk '$1 !~ /^(linux-vdso|.*\/ld-linux-.*|lib(c|m|dl|rt|pthread))[.]so/ {print $1}')
    [ -z "$others" ] || die "$file needs libraries that another machine may lack: ${others//$'\n'/ }"
  done
  cp "$0" "$pack/device_check.sh"
  bytes=$(cat "$pack/lockstep_device_check" "$pack/$library" "$pack/device_check.sh" | wc -c)
  [ "$bytes" -le "$most_bytes" ] || die "the pack has $bytes bytes, wanted at most $most_bytes"
  echo "$bytes bytes in $pack"
  exit
fi

# The wheels nvidia-nccl-cu12 and nvidia-nccl-cu13 have NCCL in one place, where the loader does not look.
nccl="${LOCKSTEP_NCCL:-}"
if [ -z "$nccl" ] && command -v python3 >/dev/null; then
  nccl=$(timeout 20 python3 - <<'END' || true
import importlib.util
import pathlib

spec = importlib.util.find_spec("nvidia")
for folder in (spec and spec.submodule_search_locations) or ():
    library = pathlib.Path(folder, "nccl", "lib", "libnccl.so.2")
    if library.exists():
        print(library)
        break
END
  )
fi
options=()
[ -z "$nccl" ] || options+=(--nccl "$nccl")

# The limits add up to less than 5 minutes: 140 s and the ends of killed processes, and a minute for each tool.
check="$programs/lockstep_device_check"
mkdir -p "$out"
if command -v nvidia-smi >/dev/null; then timeout 10 nvidia-smi -L || true; else echo "device_check: no nvidia-smi"; fi
failed=0
timeout -k 2 160 "$check" "$programs/$library" --seconds 140 --json "$out/device_check.json" "${options[@]}" || failed=$?
[ "$failed" -ne 3 ] || exit 3 # no device
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    echo "== compute-sanitizer $tool"
    timeout -k 2 50 compute-sanitizer --tool "$tool" --error-exitcode 9 --log-file "$out/$tool.txt" \
      "$check" "$programs/$library" --small --only checks --one-process || failed=$?
    tail -n 1 "$out/$tool.txt" || true
  done
else
  echo "device_check: no compute-sanitizer: its checks are left out"
fi
exit "$failed"
