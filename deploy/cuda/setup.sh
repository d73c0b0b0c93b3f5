# Other scripts source this file. It sets all that cargo needs to build with CUDA in the profile $1,
# for compute capability $CUDA_COMPUTE_CAP, and prints what the kernels use. NVIDIA's compiler comes
# from PyPI, so neither a GPU nor CUDA is needed.
profile=$1
CUDA_HOME=$(deploy/cuda/toolkit.sh target/cuda-toolkit)
export CUDA_HOME CUDA_PATH=$CUDA_HOME PATH=$CUDA_HOME/bin:$PATH
export CUDA_COMPUTE_CAP=${CUDA_COMPUTE_CAP:-90}
export CUDAFORGE_THREADS=${CUDAFORGE_THREADS:-$(nproc)}

# The build scripts of candle-kernels and policy leave their kernels as PTX, which a driver would
# compile at every first use; the program carries machine code.
ptx=$(cargo check --locked --profile "$profile" --features nccl \
  --message-format json-render-diagnostics | python3 -c '
import json, sys
messages = [json.loads(line) for line in sys.stdin]
scripts = [message for message in messages if message["reason"] == "build-script-executed"]
for package in "candle-kernels", "/policy#":
    print(next(script["out_dir"] for script in scripts if package in script["package_id"]))')
mapfile -t ptx <<<"$ptx"
export SQLENV_CUBINS=${ptx[0]}/cubins
deploy/cuda/kernels.sh "$SQLENV_CUBINS" "${ptx[@]}"
