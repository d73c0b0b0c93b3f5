#!/usr/bin/env bash
# Runs every test, or those that the arguments name to `cargo test`, with CUDA built in, on a machine without a GPU: the program
# must then behave as one without CUDA.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/cuda/setup.sh release
cargo test --release --locked --features cli/nccl,cli/cubins "${@:---workspace}"
