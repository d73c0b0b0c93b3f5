#!/usr/bin/env bash
# Writes a random signing key, tokens and a password to the folder $1, by default deploy/secrets.
# Files that exist are kept, since changing the signing key ends all episodes.
#
# The containers' user 65532 must read the files, so they are world-readable in a folder that only
# its owner may enter.
set -euo pipefail
folder=${1:-$(dirname "$0")/secrets}
mkdir -p "$folder"
chmod 700 "$folder"
for name in signing-key env-token actor-token rank-token grafana-password; do
  file=$folder/$name
  # An empty file was left by a run that ended early.
  if [ ! -s "$file" ]; then
    rm -f "$file.new"
    (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$file.new")
    chmod 444 "$file.new"
    mv -f "$file.new" "$file"
    echo "wrote $file"
  fi
done
