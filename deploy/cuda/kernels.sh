#!/usr/bin/env bash
# Compiles the PTX in the folders $2 and following to machine code in the folder $1. Next to each
# cubin it writes the key by which the program identifies the PTX (length and CRC-32). It prints
# each kernel that spills registers, then the number of kernels and the most registers that one
# uses. It needs ptxas on the PATH.
set -euo pipefail
cubins=$1
shift

texts=()
for folder in "$@"; do
  texts+=("$folder"/*.ptx)
done
# The second cubin of a name would replace the first.
repeated=$(printf '%s\n' "${texts[@]##*/}" | sort | uniq --repeated)
if [ -n "$repeated" ]; then
  echo "cuda kernels: two modules have one name; rename ours:" "${repeated//$'\n'/ }" >&2
  exit 1
fi

mkdir -p "$cubins"
for ptx in "${texts[@]}"; do
  name=$(basename "$ptx" .ptx)
  key=$(python3 -c '
import sys, zlib
text = open(sys.argv[1], "rb").read()
print(len(text), zlib.crc32(text))' "$ptx")
  if [ "$(cat "$cubins/$name.key" 2>/dev/null)" != "$key" ]; then
    rm -f "$cubins/$name.key"
    architecture=$(sed -n 's/^\.target \(sm_[0-9a-z]*\).*/\1/p' "$ptx")
    ptxas --verbose --gpu-name "$architecture" --output-file "$cubins/$name.cubin" "$ptx" \
      >"$cubins/$name.log" 2>&1 ||
      { cat "$cubins/$name.log" >&2 && exit 1; }
    # Written last: a key means that the other files are complete.
    echo "$key" >"$cubins/$name.key"
  fi
  sed "s|^|$name: |" "$cubins/$name.log"
done | awk '
  /Compiling entry function/ { kernel = $1 " " $8; kernels += 1 }
  /spill stores/ && !/ 0 bytes spill stores, 0 bytes spill loads/ {
    $1 = ""
    print kernel ":" $0
    spilling += 1
  }
  match($0, /Used [0-9]+ registers/) {
    used = substr($0, RSTART + 5) + 0
    if (used > most) most = used
  }
  END { printf "%d kernels, %d of them spill, at most %d registers\n", kernels, spilling, most }'
