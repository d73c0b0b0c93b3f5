#!/usr/bin/env bash
# Checks that the image $2 of $1 (podman or docker) has certificate authorities where the program
# looks for them. Without them it reads no bucket and trusts no https address.
set -euo pipefail
engine=$1
image=$2
file=/etc/ssl/certs/ca-certificates.crt

container=$("$engine" create "$image")
trap '"$engine" rm "$container" >/dev/null' EXIT
# The images have no shell, so the file is copied out.
found=$("$engine" cp "$container:$file" - | tar --extract --to-stdout |
  grep -c 'BEGIN CERTIFICATE' || true)
if [ "$found" = 0 ]; then
  echo "the image $image has no certificates in $file" >&2
  exit 1
fi
echo "the image $image trusts $found certificate authorities"
