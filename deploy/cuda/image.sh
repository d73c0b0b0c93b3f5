#!/usr/bin/env bash
# Builds the image sqlenv-cuda:$2 with $1 (podman or docker). It contains target/cuda/sqlenv, the C
# library that the program was linked to, NVIDIA's libraries of libraries.txt, and the certificate
# authorities of this machine. It does not contain the driver: NVIDIA's container runtime adds the
# driver of the host.
set -euo pipefail
cd "$(dirname "$0")/../.."
engine=$1
version=$2
program=target/cuda/sqlenv
libraries=target/cuda-libraries
root=target/cuda-image/root

stamp=$(sha256sum <deploy/cuda/libraries.txt)
if [ "$(cat "$libraries/stamp" 2>/dev/null)" != "$stamp" ]; then
  rm -rf "$libraries"
  # 1.2 GB, unpacked.
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-user \
    --no-deps --only-binary=:all: --require-hashes --target "$libraries" --requirement deploy/cuda/libraries.txt
  echo "$stamp" >"$libraries/stamp"
fi

rm -rf "$root"
mkdir -p "$root"/{tmp,runs,usr/lib/cuda}
cp "$program" "$root/sqlenv"
find "$libraries/nvidia" -name 'lib*.so*' ! -name 'libnvblas*' ! -name '*.alt.*' \
  -exec cp --dereference {} "$root/usr/lib/cuda" \;
# The C library and the libraries of the compiler, at the paths where the loader finds them.
find "$root" -type f -exec ldd {} + | grep -oE '(^|[[:space:]])/[^ :]+ \(' | tr -d ' \t(' |
  grep -v "^$PWD" | sort -u | while read -r library; do
  mkdir -p "$root$(dirname "$library")"
  cp --dereference "$library" "$root$library"
done
deploy/certificates.sh "$root/etc/ssl/certs/ca-certificates.crt"
chmod 1777 "$root/tmp" "$root/runs"
"$engine" build --tag "sqlenv-cuda:$version" --build-arg "VERSION=$version" \
  --build-arg "REVISION=$(git rev-parse HEAD)" --file deploy/Containerfile.cuda target/cuda-image
deploy/test/certificates.sh "$engine" "sqlenv-cuda:$version"
