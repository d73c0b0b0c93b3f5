# One target per intent; each is a plain command that also works alone.
.PHONY: train test check proto-lint python-test image cuda cuda-test cuda-image

train: ## runs the default training
	cargo run --release -- train

test: ## runs every test
	cargo test --release --workspace

check: ## runs what CI runs
	.ci/run

python-test: ## needs `pip install './python[test]'`
	cd python && pytest

proto-lint: ## needs npm
	cd proto && npx --yes @bufbuild/buf@1.75.0 lint

STATIC := $(shell uname -m)-unknown-linux-musl
ENGINE ?= podman

# needs `rustup target add $(STATIC)`, musl-gcc, and podman (or ENGINE=docker)
image: ## env-node's container
	cargo build --profile dist --locked --target $(STATIC)
	mkdir -p target/image
	cp target/$(STATIC)/dist/sqlenv target/image/sqlenv
	target/image/sqlenv data build --out target/image/data
	$(ENGINE) build --tag sqlenv-env-node --file deploy/Containerfile target/image

# needs python3 with pip and g++, and neither CUDA nor a GPU
cuda: ## target/cuda/sqlenv, for NVIDIA GPUs of CUDA_COMPUTE_CAP
	deploy/cuda/build.sh

cuda-test: ## every test with CUDA built in; needs what `cuda` needs
	deploy/cuda/test.sh

cuda-image: cuda ## the same in a container, with CUDA's libraries; needs podman (or ENGINE=docker)
	deploy/cuda/image.sh $(ENGINE)

# 90: H100 and H200. 80: A100. 89: L4, L40, RTX 4090.
export CUDA_COMPUTE_CAP ?= 90
