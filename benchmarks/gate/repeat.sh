#!/usr/bin/env bash
# Run the README's two gates again and again from a fresh clone, as a newcomer would, and log what each said and took.
#
#   bash benchmarks/gate/repeat.sh REPOSITORY TIMES > benchmarks/gate/DATE.log
#
# Everything is made below a temporary folder: the clone, its virtual environment, the machine's noise bands, the result folders.
# One line a run: the target, the exit code of make (2 for any failing gate), seconds, the gate's own exit code, the verdict, and
# how many processes of the gate were left. Keep the machine otherwise idle.
set -euo pipefail
repository=$1 times=$2
folder=$(mktemp -d "${TMPDIR:-/tmp}/perfgate-repeat-XXXXXX")
state=$folder/state

stamp() { echo "$(date -u +%H:%M:%S) $*"; }

# Whatever a gate starts inherits the variable that only its command line sets.
count_left() { { grep -lsz "^PERFGATE_STATE=$state\$" /proc/[0-9]*/environ 2> /dev/null || true; } | wc -l; }

git clone --quiet "$repository" "$folder/clone"
cd "$folder/clone"
stamp "$(date -u +%F), commit $(git rev-parse --short HEAD), $(nproc) processors ($(sed -n 's/model name.*: //p' /proc/cpuinfo | head -1)), $(free -g | awk '/Mem/ {print $2}') GB"
begun=$SECONDS
make .venv/.engine > "$folder/set-up.log" 2>&1
stamp "set-up: $((SECONDS - begun)) s, $(du -sm .venv | cut -f1) MB of virtual environment"

for ((run = 1; run <= times; run++)); do
  for target in gate gate-regression; do
    begun=$SECONDS code=0
    PERFGATE_STATE=$state make "$target" > "$folder/$target-$run.out" 2> "$folder/$target-$run.err" || code=$?
    took=$((SECONDS - begun))
    own=$(sed -n 's/.*Error \([0-9]*\)$/\1/p' "$folder/$target-$run.err" | tail -1)
    verdict=$(.venv/bin/python -c 'import json, sys; print(json.load(open(sys.argv[1]))["outcome"])' \
      "$(find perfgate-results -mindepth 2 -maxdepth 2 -name verdict.json ! -path '*calibration*' -printf '%T@ %p\n' | sort -rn | head -1 | cut -d' ' -f2-)")
    stamp "$target $run: make $code, gate ${own:-0}, $took s, $verdict, $(count_left) processes left"
  done
done
stamp "results: $(du -sm perfgate-results | cut -f1) MB in $folder/clone/perfgate-results"
