# One target per intent; each is a plain command that also works alone.
.PHONY: train test check proto-lint python-test

train: ## the main job
	cargo run --release -- train

test: ## every test
	cargo test --release --workspace

check: ## what CI runs
	.ci/run

python-test: ## needs `pip install './python[test]'`
	cd python && pytest

proto-lint: ## needs npm
	cd proto && npx --yes @bufbuild/buf@1.75.0 lint
