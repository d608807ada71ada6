#!/usr/bin/env bash
# Installs what the tests need beyond Go: as root on Debian, otherwise it only says what is missing.
set -euo pipefail

packages=(wine wine64 gcc-mingw-w64-x86-64 iproute2)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "setup: not installed: ${missing[*]} (needs root on Debian; tests that need them are left out)" >&2
  exit 0
fi

echo "setup: installing ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "setup: could not install ${missing[*]}" >&2
  echo "hint: run 'apt-get install ${missing[*]}' by hand and look at what it says; tests that need them are left out" >&2
  [ "${COURIER_REQUIRE_ALL:-}" != 1 ]
fi
