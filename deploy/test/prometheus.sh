#!/usr/bin/env bash
# Prepares target/prometheus, from which compose.test.yaml builds Prometheus: the programs of
# Debian's package and the C library that they need.
set -euo pipefail
cd "$(dirname "$0")/../.."
context=target/prometheus
rm -rf "$context"
mkdir -p "$context/root/usr/bin" "$context/prometheus"
for program in prometheus promtool; do
  path=$(command -v "$program") || {
    echo "$program is missing; install it with: apt-get install prometheus" >&2
    exit 1
  }
  cp "$path" "$context/root/usr/bin/"
done
ldd "$context/root/usr/bin/prometheus" | grep -oE '/[^ ]+ \(' | tr -d ' (' | while read -r library; do
  mkdir -p "$context/root$(dirname "$library")"
  cp --dereference "$library" "$context/root$library"
done
cp deploy/test/Containerfile "$context/Containerfile"
