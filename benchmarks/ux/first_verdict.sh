#!/usr/bin/env bash
# From `git clone` to the first verdict, as a newcomer goes: by `perfgate demo` with the light core, and by `make gate`.
#
#   bash benchmarks/ux/first_verdict.sh REPOSITORY [demo|gate] > benchmarks/ux/DATE-first-verdict.md
#
# REPOSITORY is an address or a folder; without a second word both ways are gone. Prints the seconds of each step, what it left on
# disk and the verdict's first line. Everything lies below a temporary folder, which is removed: the clone, both environments, the
# machine's noise, results. Packages are downloaded anew (no cache of pip); PYTHON and TORCH_INDEX count as they do for `make`.
# Keep the machine otherwise idle.
set -euo pipefail
repository=$1 ways=${2:-demo gate}
[[ -d $repository ]] && repository=$(realpath "$repository")
folder=$(mktemp -d "${TMPDIR:-/tmp}/perfgate-first-XXXXXX")
trap 'rm -rf "$folder"' EXIT
export PERFGATE_STATE=$folder/state PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 BROWSER=true
unset PYTHONPATH VIRTUAL_ENV
python=${PYTHON:-python3} total_ms=0

now_ms() { date +%s%3N; }
write_seconds() { echo "$(($1 / 1000)).$(($1 % 1000 / 100))"; }
measure_mb() { du -sk "$1" | awk '{printf "%.1f MB", $1 / 1024}'; }
fail() { tail -5 "$folder/err" >&2; echo "first_verdict: $*" >&2; exit 1; }

# A row: title, what it left on disk ("-" for nothing that counts), command. 1 and 3 are verdicts, and 2 is what `make` says of one.
step() {
  local title=$1 left=$2 code=0 begun took
  shift 2
  begun=$(now_ms)
  "$@" > "$folder/out" 2> "$folder/err" || code=$?
  took=$(($(now_ms) - begun))
  total_ms=$((total_ms + took))
  ((code <= 3)) || fail "$title ended with $code"
  echo "| $title | $(write_seconds "$took") | $([[ $left == - ]] || measure_mb "$left") |"
}

install_core() {
  "$python" -m venv "$folder/core" &&
    "$folder/core/bin/python" -m pip install --quiet --require-hashes -r .github/requirements.txt &&
    "$folder/core/bin/python" -m pip install --quiet --no-deps .
}

# An installation that failed is no verdict.
must() { "$@" || return 70; }

finish() {
  local verdict
  verdict=$(grep -m 1 -oE '^(PASS|IMPROVED|REGRESSION|INCONCLUSIVE|INVALID)[^|]*' "$folder/out") || fail "there is no verdict"
  echo "| **to the first verdict** | **$(write_seconds $((total_ms + clone_ms)))** | $verdict |"
}

echo "| step | seconds | on disk, or the verdict |"
echo "|:--|--:|:--|"
step "\`git clone\`" "$folder/clone" must git clone --quiet --no-local "$repository" "$folder/clone"
clone_ms=$total_ms
cd "$folder/clone"
if [[ $ways == *demo* ]]; then
  total_ms=0
  step "the light core, by hash" "$folder/core" must install_core
  cd "$folder"
  step "\`perfgate demo\`" "$folder/perfgate-demo" "$folder/core/bin/perfgate" demo
  finish
  cd clone
fi
if [[ $ways == *gate* ]]; then
  total_ms=0
  step "\`make gate\`: the engine" .venv must make .venv/.engine PYTHON="$python" TORCH_INDEX="${TORCH_INDEX:-}"
  step "\`make gate\`: calibration, measurement, verdict" perfgate-results make gate
  finish
fi
echo
echo "$(date -u +%F), commit $(git rev-parse --short HEAD), $(nproc) processors ($(sed -n 's/model name.*: //p' /proc/cpuinfo | head -1)), $(free -g | awk '/Mem/ {print $2}') GB, load $(cut -d' ' -f1 /proc/loadavg) at the end."
