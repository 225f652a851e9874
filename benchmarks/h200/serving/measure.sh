#!/usr/bin/env bash
# Measure the two sessions of this folder on an NVIDIA GPU: equal arms, and SGLang's own fused MoE sum against its plain path.
#   measure.sh RESULTS_DIR [BLOCKS]
# needs a python3 that has SGLang and perfgate (PYTHONPATH is enough). Replay: perfgate check RESULTS_DIR/{aa,fused-sum}
set -euo pipefail
results=$1 blocks=${2:-3}
here=$(cd "$(dirname "$0")" && pwd)
model=$(mktemp -d)/gpt-oss-20b-shape
mkdir -p "$results"
nvidia-smi >"$results/nvidia-smi.txt"
python3 "$here/make_model.py" "$model"
measure() { python3 -m perfgate run "$here/scenario.toml" --model "$model" --blocks "$blocks" --out "$results/$1" "${@:2}"; }
measure aa
measure fused-sum --candidate-arg=--enable-fused-moe-sum-all-reduce
