// Package interrupt interrupts test binaries that run a local cluster, as Ctrl-C does, and looks for what they leave behind.
package interrupt
