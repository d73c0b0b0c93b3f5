#!/usr/bin/env bash
# Builds target/cuda/sqlenv, the program with CUDA, for GPUs of compute capability $CUDA_COMPUTE_CAP (90: H100 and H200), and
# checks it. Neither a GPU nor CUDA need be there. Further arguments go to cargo.
set -euo pipefail
cd "$(dirname "$0")/../.."
limit_mib=60

CUDA_HOME=$(deploy/cuda/toolkit.sh target/cuda-toolkit)
export CUDA_HOME CUDA_PATH=$CUDA_HOME PATH=$CUDA_HOME/bin:$PATH CUDA_COMPUTE_CAP=${CUDA_COMPUTE_CAP:-90}
export CUDAFORGE_THREADS=${CUDAFORGE_THREADS:-$(nproc)}

# candle's build script leaves its kernels as PTX, which a driver would compile at every first use; the program carries machine code.
messages=target/cuda-toolkit/messages.json
cargo check --locked --profile cuda --features nccl --message-format json-render-diagnostics "$@" >"$messages"
ptx=$(python3 - "$messages" <<'PYTHON'
import json, sys

messages = [json.loads(line) for line in open(sys.argv[1])]
scripts = [message for message in messages if message["reason"] == "build-script-executed"]
print(next(script["out_dir"] for script in scripts if "candle-kernels" in script["package_id"]))
PYTHON
)
export SQLENV_CUBINS=$ptx/cubins
deploy/cuda/kernels.sh "$ptx" "$SQLENV_CUBINS"

log=target/cuda-toolkit/build.log
if ! cargo build --locked --profile cuda --features nccl,cubins "$@" 2>&1 | tee "$log"; then
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
