# One target per intent; each is a plain command that also works alone.
.PHONY: base-policy images secrets cuda cuda-test cuda-image

# about three hours on two cores with AMX; after an interruption, the same command continues
base-policy: # trains a base policy and puts its weights into the program
	cargo run --release --locked -- pretrain --preset base --out runs/base
	cp runs/base/model/model.safetensors policy/embedded/

STATIC := $(shell uname -m)-unknown-linux-musl
ENGINE ?= podman

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
BUILD = $(ENGINE) build --file deploy/Containerfile --build-arg VERSION=$(VERSION) \
	--build-arg REVISION=$(shell git rev-parse HEAD)

# needs `rustup target add $(STATIC)`, musl-gcc, and podman (or ENGINE=docker)
images: # the containers sqlenv-env-node and sqlenv, for the CPU
	cargo build --profile dist --locked --features opentelemetry --target $(STATIC)
	mkdir -p target/image/runs
	cp target/$(STATIC)/dist/sqlenv target/image/sqlenv
	target/image/sqlenv data build --out target/image/data
	deploy/certificates.sh target/image/ca-certificates.crt
	$(BUILD) --target env-node --tag sqlenv-env-node:$(VERSION) target/image
	$(BUILD) --target sqlenv --tag sqlenv:$(VERSION) target/image
	deploy/test/certificates.sh $(ENGINE) sqlenv-env-node:$(VERSION)
	deploy/test/certificates.sh $(ENGINE) sqlenv:$(VERSION)

secrets: # deploy/secrets: a signing key and tokens for compose; existing ones are kept
	deploy/secrets.sh

# needs python3 with pip and g++, and neither CUDA nor a GPU
cuda: # target/cuda/sqlenv, for NVIDIA GPUs of CUDA_COMPUTE_CAP
	deploy/cuda/build.sh

cuda-test: # every test with CUDA built in; needs what `cuda` needs
	deploy/cuda/test.sh

cuda-image: cuda # the container sqlenv-cuda: the same with CUDA's libraries; needs podman (or ENGINE=docker)
	deploy/cuda/image.sh $(ENGINE) $(VERSION)

# 90: H100 and H200. 80: A100. 89: L4, L40, RTX 4090.
export CUDA_COMPUTE_CAP ?= 90
