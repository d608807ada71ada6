#!/usr/bin/env bash
# Runs every test, quick ones first, and ends with what failed and what was left out.
set -uo pipefail
cd "$(dirname "$0")/.."

# The flags with which the control plane is built, so that what both have in common is compiled once.
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"

# What a shell may hold of another cluster is none of the tests' business.
unset KUBECONFIG KUBERNETES_SERVICE_HOST COURIER_CLUSTER_DIR

COURIER_LEFT_OUT=$(mktemp)
export COURIER_LEFT_OUT
trap 'rm -f "$COURIER_LEFT_OUT"' EXIT
failed=()

# step NAME COMMAND… runs the command and remembers whether it failed. The command has a process group of its own, so that an
# interrupt can be handed on to all of it, whomever it was sent to, and waited for: tests end their clusters then.
step() {
  local name=$1
  shift
  echo "== $name"
  set -m
  "$@" </dev/null &
  running=$!
  set +m
  wait "$running" || failed+=("$name")
  running=
}

# interrupted NUMBER ends with the status of that signal, once what runs has ended.
interrupted() {
  trap '[ -z "$running" ] || kill -KILL -- "-$running" 2>/dev/null; exit 1' INT TERM HUP # whoever asks twice need not wait
  if [ -n "$running" ]; then
    kill -INT -- "-$running" 2>/dev/null
    wait "$running"
  fi
  exit $((128 + $1))
}
running=
trap 'interrupted 1' HUP
trap 'interrupted 2' INT
trap 'interrupted 15' TERM

step "set-up" hack/setup.sh
step "unit tests" go test ./bundle/... ./webhook/... ./dispatcher/... ./node/... ./cmd/... ./hack/...

# The first build takes minutes, later ones none.
step "control plane" bash -c 'go run -C hack/cluster . assets >/dev/null && go run -C hack/cluster . build --all >/dev/null'
if assets=$(go run -C hack/cluster . assets); then
  export KUBEBUILDER_ASSETS=$assets
fi

# One package at a time: each of these starts a control plane or Wine of its own.
# Never from go's test cache, which does not see the programs and manifests that these tests run.
step "real parts" go test -count 1 -p 1 -timeout 45m ./test/...
for mod in hack/cluster test/*/; do
  # Without vet, which would compile most of Kubernetes once more; `make lint` runs it.
  [ -f "$mod/go.mod" ] && step "${mod%/}" go test -C "$mod" -count 1 -vet=off -p 1 -timeout 30m ./...
done

if [ -s "$COURIER_LEFT_OUT" ]; then
  echo "== left out"
  sort -u "$COURIER_LEFT_OUT"
fi
if [ ${#failed[@]} -gt 0 ]; then
  echo "== failed: ${failed[*]}"
  exit 1
fi
echo "== all passed"
