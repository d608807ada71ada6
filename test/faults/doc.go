// Package faults breaks the real cluster of hack/cluster in every way that a cluster breaks, in the middle of a rotation, and
// checks that nothing is lost: when the fault is over every node holds the bundle, through one Job each, and no file was ever
// anything but one whole bundle or another.
package faults
