#!/usr/bin/env bash
# Builds target/cuda/sqlenv, the program with CUDA, for GPUs of compute capability $CUDA_COMPUTE_CAP
# (90: H100 and H200), and checks it. It needs neither a GPU nor CUDA. Further arguments go to
# cargo.
set -euo pipefail
cd "$(dirname "$0")/../.."
limit_mib=96

. deploy/cuda/setup.sh cuda

log=target/cuda-toolkit/build.log
if ! cargo build --locked --profile cuda --features nccl,cubins,opentelemetry "$@" 2>&1 | tee "$log"; then
  if grep -qE 'undefined (symbol|reference).*\b(__)?(cu|nvrtc|nccl)' "$log"; then
    echo "cuda build: policy/src/cuda/functions.rs lacks these functions:" >&2
    grep -oE 'undefined (symbol: |reference to `)[A-Za-z0-9_]+' "$log" | sed 's/.*[ `]//' | sort -u >&2
  fi
  exit 1
fi

program=target/cuda/sqlenv
if readelf --dynamic "$program" | grep -E 'NEEDED.*(libcu|libnv|libnccl)'; then
  echo "cuda build: $program does not start without these libraries" >&2
  exit 1
fi
bytes=$(stat --format %s "$program")
if [ "$bytes" -gt $((limit_mib * 1024 * 1024)) ]; then
  echo "cuda build: $program has $bytes bytes, more than $limit_mib MiB" >&2
  exit 1
fi
"$program" doctor
echo "$program: $bytes bytes, for compute capability $CUDA_COMPUTE_CAP"
