#!/usr/bin/env bash
# Renders each overlay into one file: hack/render.sh DIRECTORY
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: hack/render.sh DIRECTORY" >&2; exit 2; }
command -v kubectl >/dev/null || { echo "error: kubectl is not installed, and it renders the overlays" >&2; exit 1; }
cd "$(dirname "$0")/.."
mkdir -p "$1"
for overlay in manifests/overlays/*/; do
  name=$(basename "$overlay")
  kubectl kustomize "$overlay" >"$1/$name.yaml.part"
  mv "$1/$name.yaml.part" "$1/$name.yaml"
  echo "$1/$name.yaml"
done
