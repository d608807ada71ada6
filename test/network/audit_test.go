package network

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"kubelet-ca-courier/test/scale/lab"
)

// requests are all writes that courier has asked for so far, as the API server's audit log has them.
func (p *plane) requests(t *testing.T) []auditv1.Event {
	t.Helper()
	text, err := os.ReadFile(p.Audit)
	if err != nil {
		t.Fatal(err)
	}
	var all []auditv1.Event
	for line := range strings.Lines(string(text)) {
		var event auditv1.Event
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			continue // the last line is being written
		}
		if event.User.Username == lab.CourierUser && event.ObjectRef != nil && event.ResponseStatus != nil {
			all = append(all, event)
		}
	}
	return all
}
