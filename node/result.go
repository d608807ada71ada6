package node

import "errors"

// Outcome says in one word what a landing did or would do.
type Outcome string

// Outcomes of a landing.
const (
	Unchanged   Outcome = "unchanged"    // the destination already held the certificates
	Replaced    Outcome = "replaced"     // the destination held something else
	Created     Outcome = "created"      // there was no destination
	WouldChange Outcome = "would-change" // a dry run or check found that the destination is not right
	Failed      Outcome = "failed"
)

// Removal names a certificate that the destination held and that the bundle does not hold.
type Removal struct {
	Subject string `json:"subject"`
	SHA256  string `json:"sha256"`
}

// Result is what a landing reports: as one line of JSON on standard output, and as the termination message. It names
// certificates and never holds any.
type Result struct {
	Outcome      Outcome      `json:"outcome"`
	Code         ExitCode     `json:"code"`
	Meaning      string       `json:"meaning"`
	Destination  string       `json:"destination"`
	SHA256       string       `json:"sha256"`
	Certificates int          `json:"certificates"`
	Noticed      bool         `json:"noticed"`                // the kubelet was made to look at the file
	Confirmation Confirmation `json:"confirmation,omitempty"` // what the kubelet itself said
	Detail       string       `json:"detail,omitempty"`       // why it said no more
	Removed      []Removal    `json:"removed,omitempty"`
	RemovedCount int          `json:"removedCount"`
	Warnings     []string     `json:"warnings,omitempty"`
	Error        string       `json:"error,omitempty"`
	Hint         string       `json:"hint,omitempty"`
}

// Line returns the result as one line of JSON of at most limit bytes; no limit when it is 0. Lists are cut before
// anything else is, and the counts stay.
func (r Result) Line(limit int) []byte {
	for {
		line := r.appendJSON(nil)
		if limit == 0 || len(line) <= limit || len(r.Removed)+len(r.Warnings) == 0 {
			return line
		}
		r.Removed, r.Warnings = r.Removed[:len(r.Removed)/2], r.Warnings[:len(r.Warnings)/2]
	}
}

// failure is an error with its class and what an administrator can do about it.
type failure struct {
	code ExitCode
	err  error
	hint string
}

func fail(code ExitCode, err error, hint string) *failure {
	return &failure{code: code, err: err, hint: hint}
}

// diskFailure classifies an error of the destination's disk.
func diskFailure(err error) *failure {
	if errors.Is(err, ErrBusy) {
		return fail(ExitDestinationBusy, err, "find the process that keeps the file open, for instance with Sysinternals' handle.exe")
	}
	return fail(ExitWriteFailed, err, "")
}
