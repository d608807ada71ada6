#!/usr/bin/env bash
# Changes the rules of a package one by one, in a copy, and lists the changes that no test of the package notices.
# hack/mutation.sh [PACKAGE [FLAGS OF gremlins unleash]]; --dry-run lists what would be changed.
set -euo pipefail
cd "$(dirname "$0")/.."
package=${1:-bundle}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -C hack/mutation -o "$work/gremlins" github.com/go-gremlins/gremlins/cmd/gremlins
mkdir "$work/copy"
cp -r go.mod go.sum "$package" "$work/copy"
cd "$work/copy"
find . -name 'cost*_test.go' -delete # slow, and no rule depends on them
nice -n 15 "$work/gremlins" unleash --workers 1 --timeout-coefficient 20 --invert-logical "${@:2}" "./$package"
