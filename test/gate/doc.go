// Package gate tests the gate against what it stands for: the kubelet's own authenticator, and a real API server with the
// shipped webhook configuration.
package gate
