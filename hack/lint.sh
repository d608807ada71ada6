#!/usr/bin/env bash
# Runs the pinned golangci-lint over every module.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go build -C hack/tools -o "$bin/golangci-lint" github.com/golangci/golangci-lint/v2/cmd/golangci-lint
git ls-files --cached --others --exclude-standard '*go.mod' | while read -r mod; do
  dir=$(dirname "$mod")
  [ -n "$(git ls-files --cached --others --exclude-standard "$dir/*.go")" ] || continue # tools alone
  echo "lint: $dir" >&2
  (cd "$dir" && "$bin/golangci-lint" run --config "$OLDPWD/.golangci.yml" ./...)
done
