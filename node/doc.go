// Package node lands a CA bundle on a node's disk: whole or not at all, and noticed by the kubelet.
//
// The order of one landing, each step an operation of [Disk]:
//
//  1. read the mounted bundle, compare its SHA-256 with the expected one and parse it strictly;
//  2. look at the destination: no reparse point on the way, not a directory, not read-only;
//  3. when it already holds exactly the same certificates, write nothing and go to 8;
//  4. remove what a landing that was stopped left behind;
//  5. write a temporary file beside the destination and flush it to the disk;
//  6. give it the destination's permissions, or leave it to SYSTEM and Administrators when there was none;
//  7. rename it over the destination and flush the directory;
//  8. rewrite the destination's first byte with the same value, so that the kubelet's file watch fires;
//  9. read the destination back, and ask the kubelet when that is wanted.
//
// Step 8 is done on every run. A rename alone does not wake the kubelet on every Windows file system, and a run that was
// stopped between 7 and 8 leaves a file that is right and a kubelet that does not know it.
//
// The package needs neither the API server nor anything but the standard library, golang.org/x/sys and package bundle.
package node
