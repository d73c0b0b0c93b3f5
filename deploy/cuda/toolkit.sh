#!/usr/bin/env bash
# Creates a CUDA_HOME in the folder $1, without a GPU and without root: nvcc, headers, and empty
# link libraries. It does so once, until toolkit.txt or this file changes. Prints the path of
# CUDA_HOME.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
home=$folder/nvidia/cu13 # where NVIDIA's wheels of CUDA 13 unpack to

fail() {
  echo "cuda toolkit: $1" >&2
  exit 1
}

for tool in python3 gcc g++; do
  command -v "$tool" >/dev/null ||
    fail "$tool is missing; install it (Debian: apt-get install python3-pip g++)"
done
python3 -m pip --version >/dev/null 2>&1 ||
  fail "python3 has no pip; install it (Debian: apt-get install python3-pip)"
# The jumps of policy/src/cuda/lazy.rs are written for x86-64.
[ "$(uname -sm)" = "Linux x86_64" ] ||
  fail "the program with CUDA is for Linux on x86-64, and this is $(uname -sm)"

stamp=$(cat "$here/toolkit.txt" "$here/toolkit.sh" | sha256sum)
if [ "$(cat "$folder/stamp" 2>/dev/null)" != "$stamp" ]; then
  rm -rf "$folder"
  mkdir -p "$folder"
  # 105 MB. --no-user, since some systems have pip install per user, which --target refuses.
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-user \
    --no-deps --only-binary=:all: --require-hashes --target "$folder" \
    --requirement "$here/toolkit.txt" >&2 || fail "pip cannot install deploy/cuda/toolkit.txt"
  chmod +x "$home"/bin/* "$home"/nvvm/bin/*
  ln -sfn lib "$home/lib64"
  # What candle asks the linker for. The program brings each function itself
  # (policy/src/cuda/lazy.rs).
  for name in cuda cudart cublas cublasLt curand nvrtc nccl; do
    echo | gcc -shared -x c -o "$home/lib/lib$name.so" -
  done
  "$home/bin/nvcc" --version >/dev/null || fail "nvcc does not run"
  echo "$stamp" >"$folder/stamp"
fi
(cd "$home" && pwd)
