#!/usr/bin/env bash
# compute-sanitizer over our kernels: memcheck and racecheck, each tool and case set in processes of its own, spread over GPUs.
#
#   benchmarks/kernels/sanitize.sh [GPUS [OUT]]     GPUS: indices with commas (default 0), OUT: a folder (default sanitizer)
#
# Needs compute-sanitizer on PATH (CUDA toolkit) and a Python with torch and Triton (PYTHON, default python3) that finds perfgate.
# Files are OUT/TOOL-IMPLEMENTATION-N.txt; the first lines hold the command and the versions. Exit code 0: clean; 9: a tool found
# something or an answer was wrong; 1: a process did not end as it should, such as at its time limit (LIMIT_S, default 240).
#
# What `triton-slots` and `triton-atomic32` take by default for these cases (tiles as rows x columns x depth, on Hopper):
#   H=128,I=96,M=33                 64x128x64 for both products, weights and intermediate rows by tensor copies (TMA)
#   H=65,I=95,M=17,mask=ep          64x128x64 without tensor copies: rows are no multiple of 16 bytes
#   E=2,k=2,M=129,mask=padded       128x256x64 by tensor copies, half-filled blocks at half the height
#   float16, silu                   64x128x64: chunked gates and ups, so tensor copies in the second product only
# `triton-owner` and `triton-direct` take 16x64x128 in the first product, every slot a block, no tensor copies; they refuse the
# third case, which has more than 64 tokens, and that counts as clean. The quantised cases have one plan each.
set -euo pipefail

IFS=, read -r -a gpus <<< "${1:-0}"
out=${2:-sanitizer}
python=${PYTHON:-python3}
limit_s=${LIMIT_S:-240}
findings=9

sanitizer=$(command -v compute-sanitizer) || {
  echo "sanitize.sh: compute-sanitizer is not on PATH: install the CUDA toolkit or add its bin folder" >&2
  exit 2
}
mkdir -p "$out"

half=(
  'E=8,k=4,H=128,I=96,M=33,dtype=bfloat16'
  'E=8,k=4,H=65,I=95,M=17,dtype=bfloat16,mask=ep'
  'E=2,k=2,H=64,I=96,M=129,dtype=bfloat16,mask=padded'
  'E=8,k=4,H=64,I=96,M=33,dtype=float16,activation=silu,bias=off'
)
quantised=(
  'E=4,k=2,H=256,I=384,M=17,dtype=bfloat16,mask=ep,quant=fp8'
  'E=4,k=2,H=160,I=96,M=17,dtype=bfloat16,mask=ep,quant=mxfp4'
)

# Every allocation is one of its own, so that a step over its end is seen.
export PYTORCH_NO_CUDA_MEMORY_CACHING=1 PYTHONUNBUFFERED=1
versions=$("$python" -c 'from perfgate_moe.timing.survey import describe_device; print(describe_device())')
versions+=$'\n'"$("$sanitizer" --version | tail -n 1)"
versions+=$'\n'"commit $(git -C "$(dirname "$0")" rev-parse HEAD 2> /dev/null || echo unknown)"

# examine GPU TOOL IMPLEMENTATION FILE CASE...
examine() {
  local gpu=$1 tool=$2 implementation=$3 file=$4 case code=0
  shift 4
  local command=("$sanitizer" --tool "$tool" --error-exitcode "$findings" --target-processes all
    "$python" -m perfgate kernels check --impl "$implementation" --device cuda)
  for case in "$@"; do command+=(--case "$case"); done
  {
    echo "PYTORCH_NO_CUDA_MEMORY_CACHING=1 ${command[*]}"
    echo "$versions"
    CUDA_VISIBLE_DEVICES=$gpu timeout --kill-after 10 "$limit_s" "${command[@]}" 2>&1 || code=$?
    echo "exit code $code"
  } > "$file"
}

# What runs is all in this list; each GPU takes every so manieth job, one job a process, all of a GPU's side by side.
pids=()
files=()
number=0
start() {
  local tool=$1 implementation=$2 set=$3 file
  shift 3
  file=$out/$tool-$implementation-$set.txt
  examine "${gpus[number % ${#gpus[@]}]}" "$tool" "$implementation" "$file" "$@" &
  pids+=($!)
  files+=("$file")
  number=$((number + 1))
}

for implementation in triton-slots triton-atomic32 triton-owner triton-direct; do
  for tool in memcheck racecheck; do
    start "$tool" "$implementation" 1 "${half[@]}"
  done
done
for tool in memcheck racecheck; do
  start "$tool" triton quantised "${quantised[@]}"
done
for pid in "${pids[@]}"; do wait "$pid"; done

worst=0
for file in "${files[@]}"; do
  code=$(sed -n 's/^exit code //p' "$file")
  echo "$file: $(grep -E 'SUMMARY|cases sound' "$file" | tr '\n' ' ')exit code ${code:-none}"
  # A target's own exit code of 1, which a wrong answer gives, is passed on.
  if [ "$code" = "$findings" ] || grep -q 'WRONG' "$file"; then
    worst=$findings
  elif [ "${code:-none}" != 0 ] && [ "$worst" = 0 ]; then
    worst=1
  fi
done
exit "$worst"
