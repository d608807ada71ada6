package lab

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

func (l *Lab) auditLog() string { return filepath.Join(l.Dir, "logs", "audit.log") }

// AuditLength is how long the API server's audit log is by now.
func (l *Lab) AuditLength() (int64, error) {
	info, err := os.Stat(l.auditLog())
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Audit returns the requests that were answered since the audit log had that length: who did what to which object. Requests
// that only read, and those for leases, are not recorded.
func (l *Lab) Audit(since int64) (events []auditv1.Event, err error) {
	file, err := os.Open(l.auditLog())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := file.Seek(since, io.SeekStart); err != nil {
		return nil, err
	}
	for lines := json.NewDecoder(file); ; {
		var event auditv1.Event
		switch err := lines.Decode(&event); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // the last line is being written
			return events, nil
		case err != nil:
			return nil, err
		}
		if event.Stage == auditv1.StageResponseComplete && event.ObjectRef != nil && event.ResponseStatus != nil {
			events = append(events, event)
		}
	}
}
