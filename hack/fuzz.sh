#!/usr/bin/env bash
# Runs each differential fuzzer for a while: hack/fuzz.sh DURATION
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: hack/fuzz.sh DURATION" >&2; exit 2; }
cd "$(dirname "$0")/.."
for package in bundle node; do
  go test -list '^Fuzz' "./$package" | grep '^Fuzz' | while read -r target; do
    echo "== $package $target"
    go test "./$package" -run '^$' -fuzz "^$target\$" -fuzztime "$1"
  done
done
