package node

import "fmt"

// ExitCode is the process exit status of courier-node. The codes are a contract: the dispatcher's podFailurePolicy and
// the admin's scripts read them, since on Windows the exit code is all that surely comes back from a container.
type ExitCode int

// Exit codes of courier-node, one per class of outcome. 0 to 9 and 20 to 21 are stable; no other value is ever returned.
const (
	// ExitOK says that the destination holds the expected set of certificates and that the kubelet was made to look.
	ExitOK ExitCode = 0
	// ExitInternal is a failure that belongs to no other class.
	ExitInternal ExitCode = 1
	// ExitUsage is a wrong command line.
	ExitUsage ExitCode = 2
	// ExitSourceMissing says that the mounted bundle could not be read within the limit.
	ExitSourceMissing ExitCode = 3
	// ExitSourceMismatch says that the mounted bundle is not the one that was asked for, or is not a well-formed bundle.
	ExitSourceMismatch ExitCode = 4
	// ExitDestinationRefused says that the destination is not a place to write to: a reparse point, a directory, a
	// relative or drive-less path, a missing parent.
	ExitDestinationRefused ExitCode = 5
	// ExitDestinationBusy says that another process held the destination open beyond the limit.
	ExitDestinationBusy ExitCode = 6
	// ExitWriteFailed says that the disk would not take the file: no space, read-only, an I/O error, access denied.
	ExitWriteFailed ExitCode = 7
	// ExitReadBackDiffers says that the destination held something else right after the replacement: a second writer.
	ExitReadBackDiffers ExitCode = 8
	// ExitNotConfirmed says that the kubelet did not advertise the new CAs within the limit; the file is right.
	ExitNotConfirmed ExitCode = 9
	// ExitWouldChange is the answer of a dry run or check: the file is not right, and a write would take no CA away.
	ExitWouldChange ExitCode = 20
	// ExitWouldRemove is the answer of a dry run or check: a write would take away a certificate that the file holds.
	ExitWouldRemove ExitCode = 21
)

// meanings says in a few words what each code means, for events, tables and hints.
var meanings = map[ExitCode]string{
	ExitOK:                 "the file is right",
	ExitInternal:           "internal error",
	ExitUsage:              "wrong command line",
	ExitSourceMissing:      "the mounted bundle could not be read",
	ExitSourceMismatch:     "the mounted bundle is not the expected one",
	ExitDestinationRefused: "the destination is not a place to write to",
	ExitDestinationBusy:    "another process holds the destination open",
	ExitWriteFailed:        "the disk would not take the file",
	ExitReadBackDiffers:    "another writer changed the file at the same time",
	ExitNotConfirmed:       "the kubelet does not advertise the new CAs yet",
	ExitWouldChange:        "the file would change",
	ExitWouldRemove:        "the file would change and lose a certificate that no source has",
}

// String returns the meaning of the code.
func (c ExitCode) String() string {
	if m, ok := meanings[c]; ok {
		return m
	}
	return fmt.Sprintf("unknown exit code %d", int(c))
}

// Final reports whether running again at once cannot change the outcome, so that the Job should end right away.
func (c ExitCode) Final() bool {
	switch c {
	case ExitUsage, ExitSourceMismatch, ExitDestinationRefused, ExitWouldChange, ExitWouldRemove:
		return true
	default:
		return false
	}
}
