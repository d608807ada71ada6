#!/usr/bin/env bash
# Runs each fuzz target of this module for a while, wherever it is: hack/fuzz.sh DURATION [FLAG OF go test]...
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: hack/fuzz.sh DURATION [FLAG OF go test]..." >&2; exit 2; }
duration=$1
shift
cd "$(dirname "$0")/.."

# Every test file of the module as go sees it, so that what other modules below it have stays out.
files=$(go list -f '{{$dir := .Dir}}{{range .TestGoFiles}}{{$dir}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$dir}}/{{.}}{{"\n"}}{{end}}' ./...)
targets=$(xargs -d '\n' grep -HoE '^func Fuzz\w+' <<<"$files" | sort)
[ -n "$targets" ] || { echo "error: no fuzz target was found" >&2; exit 1; }

while IFS=: read -r file target; do
  package=./$(realpath --relative-to=. "$(dirname "$file")") target=${target#func }
  echo "== $package $target"
  go test "$package" -run '^$' -fuzz "^$target\$" -fuzztime "$duration" -fuzzminimizetime 1s "$@" # else shortening takes the time
done <<<"$targets"
