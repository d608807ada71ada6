#!/bin/sh
# Runs the kubelet in the network namespace $1 and a mount namespace of its own; the rest is its command line. What it
# would mount goes with that namespace. It also sets kernel parameters, of the whole machine: it is given files in their
# place (k8s.io/kubernetes pkg/kubelet/cm/container_manager_linux.go, setupKernelTunables).
set -eu
namespace=$1 directory=$2
shift 2
exec nsenter --net="/run/netns/$namespace" unshare --mount sh -eu -c '
	directory=$0
	for parameter in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
		kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
		mkdir -p "$directory/sysctl/$(dirname "$parameter")"
		cat "/proc/sys/$parameter" >"$directory/sysctl/$parameter"
		mount --bind "$directory/sysctl/$parameter" "/proc/sys/$parameter"
	done
	exec "$@"
' "$directory" "$@"
