#!/usr/bin/env bash
# Campaigns side by side on one machine, each with GPUs of its own and 16 cores for each of them, from one call to the next.
#
#   slots.sh start ARCHIVES SECONDS WAIT_S 'ROW ROW ...' 'ROW ...' ...   one slot for each list of rows of wanted.toml, then equal arms
#   slots.sh more ARCHIVES SECONDS WAIT_S 'ROW ROW ...' 'ROW ...' ...    the same, with these only where a list names their row
#   slots.sh wait WAIT_S                                                 what the slots have measured since
#
# ARCHIVES is a folder of what bundle.py packed; other releases and engines than the bundle's are laid beside it. SECONDS is how
# long the slots may measure in all. A call returns after WAIT_S seconds, or when all slots have ended, and leaves in $OUT what
# they have: `cat lease.tar.xz.* | tar -xJ`. Compile caches are cold at first: a first block takes three to five minutes more. The
# call in which the last slot ended leaves them in $OUT, too, for the next machine, half as large after
# `cat caches.tar.xz.* | xz -d | xz -9e > ARCHIVES/caches.tar.xz`.
#
# Once all slots have ended, `start` may share the GPUs out anew: its slots are numbered on, and find what earlier ones compiled.
set -euo pipefail
home=/tmp/perfgate-slots
bundle=sglang-0.5.16.tar.xz

start_slots() {
  local verb=$1 archives=$2 seconds=$3 number gpu=0 rows row gpus devices cores releases=() carried=() more=()
  shift 3
  [ "$verb" = start ] || more=(--more)
  mkdir -p "$home/archives"
  number=$(find "$home" -maxdepth 1 -name 'slot-*' | wc -l)
  rm -rf "$home/tree"
  cp -r . "$home/tree"
  cp -ru "$archives/." "$home/archives"
  cd "$home/tree"
  for archive in "$home"/archives/*.tar.xz; do
    case $(basename "$archive") in
      "$bundle") ;;
      caches.tar.xz) carried=(--carried "$home/archives") ;;
      *) releases+=(--release "$archive") ;;
    esac
  done
  for rows in "$@"; do
    gpus=$(python3 -c 'import sys, tomllib
rows = {row["name"]: row.get("gpus", 1) for row in tomllib.load(open("benchmarks/h200/campaign/wanted.toml", "rb"))["wanted"]}
print(rows[sys.argv[1]])' "${rows%% *}")
    devices=$(seq -s, "$gpu" $((gpu + gpus - 1)))
    cores=$((16 * gpu))-$((16 * (gpu + gpus) - 1))
    local names=()
    for row in $rows; do names+=(--row "$row"); done
    mkdir -p "$home/slot-$number"
    if [ -d "$home/merged" ]; then
      cp -r "$home/merged/caches" "$home/slot-$number/caches"
      cp -r "$home/merged/caches/base" "$home/slot-$number/caches/candidate"
    fi
    CUDA_VISIBLE_DEVICES=$devices setsid taskset -c "$cores" python3 benchmarks/h200/campaign/campaign.py --seconds "$seconds" \
      --home "$home/slot-$number" --out "$home/slot-$number/out" --gpus "$gpus" "${names[@]}" "${more[@]}" \
      --bundle "$home/archives/$bundle" "${releases[@]}" "${carried[@]}" > "$home/slot-$number/out.log" 2>&1 < /dev/null &
    gpu=$((gpu + gpus))
    number=$((number + 1))
  done
}

wait_slots() {
  local ends=$((SECONDS + $1))
  while sleep 5 && [ $SECONDS -lt $ends ] && pgrep -f campaign/campaign.py > /dev/null; do :; done
  for slot in "$home"/slot-*; do
    echo "== $slot"
    # Its lines are those of campaign.log, and behind them why a campaign broke off.
    tail -n 6 "$slot/out.log" || true
  done
  rm -f "$OUT"/lease.tar.xz.*
  (cd "$home" && find slot-* -type f -regex 'slot-[0-9]+/\(results/.*\|campaign\.log\|state\.json\)' -print0 |
    tar --null -T - -cf -) |
    xz -T0 -3 | split -b 15m - "$OUT/lease.tar.xz."
  pgrep -f campaign/campaign.py > /dev/null || bring_caches
}

# A compiler finds what it has compiled by a digest of all that it depends on: those of all slots and arms are one cache.
bring_caches() {
  local found=("$home"/slot-*/caches/*/)
  [ -d "${found[0]}" ] || return 0
  rm -rf "$home/merged"
  mkdir -p "$home/merged/caches/base"
  for caches in "${found[@]}"; do cp -r "$caches." "$home/merged/caches/base/"; done
  tar -C "$home/merged" -cf - caches | xz -T0 -3 | split -b 15m - "$OUT/caches.tar.xz."
  # What comes back of a call has a limit: 60 MiB came, and the results behind them did not.
  if [ "$(du -sm "$OUT" | cut -f1)" -gt 60 ]; then
    rm -f "$OUT"/caches.tar.xz.*
    echo "the compile caches stay: with them the results would not come back"
  fi
}

case ${1:-} in
  start | more)
    start_slots "$1" "$2" "$3" "${@:5}"
    wait_slots "$4"
    ;;
  wait) wait_slots "$2" ;;
  *)
    sed -n '2,14s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
