#!/usr/bin/env bash
# Rolls out to N simulated nodes on a real control plane and compares with a plain loop in the same run: hack/scale.sh N
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: hack/scale.sh NODES" >&2; exit 2; }
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"
KUBEBUILDER_ASSETS=$(go run -C hack/cluster . assets)
export KUBEBUILDER_ASSETS
go run -C hack/cluster . build kwok >/dev/null
exec go test ./test/scale -run '^TestScale$' -v -count 1 -timeout 3h -nodes "$1" -strict
