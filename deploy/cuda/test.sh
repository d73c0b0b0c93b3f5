#!/usr/bin/env bash
# Runs every test with CUDA built in, on a machine without a GPU. The program must then behave like
# one without CUDA. Further arguments, such as --lib, go to cargo.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/cuda/setup.sh release
cargo test --release --locked --workspace --features cli/nccl,cli/cubins "$@"
