// Package network breaks the connection between the real courier program and a real API server, sets courier's clock wrong, and
// checks that nothing is lost: every node ends with one succeeded Job of the newest bundle, no older bundle follows a newer
// one, and no node costs more than two writes a rotation.
package network
