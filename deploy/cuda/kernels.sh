#!/usr/bin/env bash
# Compiles the PTX that `make cuda` built into the program as the driver does, and prints each kernel that spills registers, then
# how many kernels there are and the most registers that one takes.
set -euo pipefail
cd "$(dirname "$0")/../.."
CUDA_HOME=$(deploy/cuda/toolkit.sh target/cuda-toolkit)

for ptx in target/cuda/build/candle-kernels-*/out/*.ptx; do
  architecture=$(sed -n 's/^\.target \(sm_[0-9a-z]*\).*/\1/p' "$ptx")
  "$CUDA_HOME/bin/ptxas" --verbose --gpu-name "$architecture" --output-file /dev/null "$ptx" 2>&1 |
    sed "s|^|$(basename "$ptx"): |"
done | awk '
  /Compiling entry function/ { kernel = $1 " " $7; kernels += 1 }
  /spill stores/ && !/ 0 bytes spill stores, 0 bytes spill loads/ { $1 = ""; print kernel ":" $0; spilling += 1 }
  match($0, /Used [0-9]+ registers/) { used = substr($0, RSTART + 5) + 0; if (used > most) most = used }
  END { printf "%d kernels, %d of them spill, at most %d registers\n", kernels, spilling, most }'
