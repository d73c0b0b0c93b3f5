#!/usr/bin/env bash
# Copies the certificate authorities that an image trusts to the file $1: those of this machine, or
# those of the PEM file that CERTIFICATES names.
set -euo pipefail
authorities=${CERTIFICATES:-/etc/ssl/certs/ca-certificates.crt}
if ! grep -q 'BEGIN CERTIFICATE' "$authorities"; then
  echo "$authorities has no certificates;" \
    "install ca-certificates, or name a PEM file by CERTIFICATES" >&2
  exit 1
fi
install -D -m 644 "$authorities" "$1"
