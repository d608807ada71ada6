// Package node lands a CA bundle on a node's disk: whole or not at all, and noticed by the kubelet.
package node
