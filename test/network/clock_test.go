package network

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
	"kubelet-ca-courier/dispatcher"
	"kubelet-ca-courier/test/scale/lab"
)

const day = 24 * time.Hour

// aheadVariable says by how much the clock of the changed build is ahead.
const aheadVariable = "COURIER_TEST_CLOCK_AHEAD"

// shifted builds courier with a clock that a variable sets wrong, for client-go as well: k8s.io/utils is where the clock comes
// from. TLS, which has one of its own, goes by the true time: a program whose certificates are out of their time could do
// nothing.
func shifted(t *testing.T) string {
	t.Helper()
	cache, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/utils")
	list.Dir = root
	module, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	copied := twin(t, strings.TrimSpace(string(cache)), filepath.Join(dir, "modules"), strings.TrimSpace(string(module)))
	replace(t, filepath.Join(copied, "clock", "clock.go"),
		"import \"time\"\n", "import (\n\t\"os\"\n\t\"time\"\n)\n\nvar ahead, _ = time.ParseDuration(os.Getenv(\""+aheadVariable+"\"))\n",
		"return time.Now()", "return time.Now().Add(ahead)",
		"return time.Since(ts)", "return time.Now().Add(ahead).Sub(ts)")
	path := filepath.Join(dir, "courier")
	run := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", path, "./cmd/courier")
	run.Dir = root
	run.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOMODCACHE="+filepath.Join(dir, "modules"))
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("building courier: %v\n%s", err, out)
	}
	return path
}

// twin makes a module cache that is the machine's own, but for one module, of which there is a copy to change. Go lets no
// overlay touch its module cache, and a module from anywhere else would have all that depends on it compiled again.
func twin(t *testing.T, cache, to, module string) (copied string) {
	t.Helper()
	below, err := filepath.Rel(cache, module)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	first, rest, deeper := strings.Cut(below, string(filepath.Separator))
	entries, err := os.ReadDir(cache)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.Name() == first {
			continue
		}
		if err := os.Symlink(filepath.Join(cache, entry.Name()), filepath.Join(to, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	from, to := filepath.Join(cache, first), filepath.Join(to, first)
	if deeper {
		return twin(t, from, to, filepath.Join(from, rest))
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// replace changes texts of a file, each of which is there once. The pairs are old and new in turn.
func replace(t *testing.T, file string, pairs ...string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for i := 0; i < len(pairs); i += 2 {
		if strings.Count(text, pairs[i]) != 1 {
			t.Fatalf("%s has %q not once: change this test with it", file, pairs[i])
		}
		text = strings.Replace(text, pairs[i], pairs[i+1], 1)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// signers are those whose time is close to the present.
type signers struct{ old, ended, young, ending string }

func newSigners(t *testing.T) signers {
	t.Helper()
	now := time.Now()
	ca := func(name string, from, until time.Duration) string {
		return string(bundletest.NewCA(t, bundletest.Spec{Name: name, From: now.Add(from), Until: now.Add(until)}).PEM)
	}
	return signers{
		old:    ca("old", -300*day, 65*day),
		ended:  ca("ended", -365*day, -6*time.Hour),
		young:  ca("young", -time.Hour, 365*day),
		ending: ca("ending", -365*day, 12*time.Hour),
	}
}

// watched is courier at work with a clock, and its webhook in the way of whoever writes the guarded bundle.
type watched struct {
	*plane
	*keeper
	signers signers
}

// TestNothingIsLostWhenCouriersClockIsWrongByADay runs courier with its clock behind, then ahead, then right.
func TestNothingIsLostWhenCouriersClockIsWrongByADay(t *testing.T) {
	t.Parallel() // most of the time is spent waiting
	p := startPlane(t, append(numbered(6), lab.FailingNode)...)
	built, s := shifted(t), newSigners(t)
	for _, clock := range []struct {
		name  string
		ahead time.Duration
		while func(t *testing.T, c watched)
	}{
		{"a day behind", -day, behind},
		{"a day ahead", day, ahead},
		{"right again", 0, right},
	} {
		t.Run(clock.name, func(t *testing.T) {
			e := p.begin(t)
			c := watched{p, p.keep(t, built, p.CourierKubeconfig(), fmt.Sprintf("%s=%s", aheadVariable, clock.ahead)), s}
			c.watchGuarded(t)
			clock.while(t, c)
			c.keeper.end()
			e.end(t)
			t.Logf("courier said:\n%s", brief(c.said(0)))
			if c.restarts() > 0 {
				t.Errorf("courier was restarted %d times", c.restarts())
			}
		})
	}
}

// behind: for a clock that is a day behind, what ended hours ago is valid, and what was born an hour ago is to come.
func behind(t *testing.T, c watched) {
	s := c.signers
	c.settled(t, c.guard(t, s.old+s.ended))
	c.settled(t, c.guard(t, s.old+s.ended+s.young))
	c.mentionsEventually(t, "clock is wrong")
	c.mentionsEventually(t, "is valid from") // why it is not ready
	if ready := c.ready(t); ready {
		t.Error("courier is ready, although by its clock the webhook's certificate is to come")
	}
	err := c.try(t.Context(), sources, guarded, map[string]string{key: s.old + s.young})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), string(bundle.DropsValidCA)) {
		t.Errorf("what is valid by courier's clock may go: %v", err)
	}
	c.tried(t, 2)
}

// ahead: for a clock that is a day ahead, what is needed for hours to come has ended.
func ahead(t *testing.T, c watched) {
	s := c.signers
	c.mentionsEventually(t, "clock is wrong")
	// What had ended by the true time may go now: it has by this clock too.
	c.settled(t, c.guard(t, s.old+s.young))
	all := c.guard(t, s.old+s.young+s.ending)
	c.settled(t, all)
	// The gate lets the last one go. It is needed: nodes keep it.
	c.apply(t, sources, guarded, map[string]string{key: s.old + s.young})
	eventually(t, "an event says that the drop is held", func(ctx context.Context) error {
		events, err := c.client.EventsV1().Events(sources).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.Reason == dispatcher.ReasonHeld && strings.Contains(event.Note, string(bundle.DropsValidCA)) {
				return nil
			}
		}
		return errors.New("there is none")
	})
	t.Log("kubectl courier status: ", c.status(t))
	c.settled(t, all)
	c.apply(t, sources, guarded, map[string]string{key: c.text})
	if tries := c.attempts(t); tries > 2 {
		t.Errorf("the node that fails was tried %d times at once", tries)
	}
}

// right: what a clock that was ahead has left behind stands in nobody's way.
func right(t *testing.T, c watched) {
	c.fromTheFuture(t)
	c.settled(t, c.rotate(t))
	c.settled(t, c.rotate(t))
	if !c.ready(t) {
		t.Error("courier is not ready")
	}
}

// fromTheFuture gives the current snapshot, and the Jobs, a place in the order that is a day away, as a dispatcher gives them
// that goes by a clock a day ahead.
func (c watched) fromTheFuture(t *testing.T) {
	t.Helper()
	sequence := strconv.FormatInt(time.Now().Add(day).UnixMilli(), 10)
	patch := []byte(`{"metadata":{"annotations":{"` + dispatcher.AnnotationSequence + `":"` + sequence + `"}}}`)
	name := dispatcher.SnapshotPrefix + hashOf(t, c.text)[:16]
	if _, err := c.client.CoreV1().ConfigMaps(dispatcher.JobsNamespace).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, node := range c.nodes {
		if _, err := c.client.BatchV1().Jobs(dispatcher.JobsNamespace).Patch(t.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// watchGuarded has the API server ask courier's webhook about the guarded bundle, and waits until it is answered.
func (c watched) watchGuarded(t *testing.T) {
	t.Helper()
	certificate, err := os.ReadFile(filepath.Join(c.certificates, "tls.crt"))
	if err != nil {
		t.Fatal(err)
	}
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "gate"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "gate.example.com", AdmissionReviewVersions: []string{"v1"},
			SideEffects:   ptr.To(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy: ptr.To(admissionregistrationv1.Fail),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: ptr.To("https://127.0.0.1:" + c.webhook + "/validate"), CABundle: certificate,
			},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: sources}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}
	api := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if err := api.Delete(t.Context(), "gate", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	if _, err := api.Create(t.Context(), configuration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the gate judges", func(ctx context.Context) error {
		err := c.try(ctx, sources, guarded, map[string]string{key: "no bundle"}, metav1.DryRunAll)
		if !strings.Contains(fmt.Sprint(err), string(bundle.NotPEM)) {
			return fmt.Errorf("what is no bundle is answered with %w", err)
		}
		return nil
	})
}

// ready asks courier whether it is ready.
func (c watched) ready(t *testing.T) bool {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.health, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// mentionsEventually waits until courier has said the text, asking it meanwhile whether it is ready, as a kubelet does.
func (c watched) mentionsEventually(t *testing.T, text string) {
	t.Helper()
	eventually(t, "courier says what is wrong", func(context.Context) error {
		c.ready(t)
		return c.mentions(0, text)
	})
}

// attempts is how often the node that fails was tried with the bundle of the moment.
func (c watched) attempts(t *testing.T) int {
	t.Helper()
	job, err := c.client.BatchV1().Jobs(dispatcher.JobsNamespace).Get(t.Context(), lab.FailingNode, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0 // between two of them
	}
	if err != nil {
		t.Fatal(err)
	}
	return dispatcher.ReadRecord(job).Attempt
}

// tried waits until the node that fails is tried again, after the back-off of half a minute, not of a day.
func (c watched) tried(t *testing.T, attempt int) {
	t.Helper()
	eventually(t, "the node that fails is tried again", func(context.Context) error {
		if now := c.attempts(t); now < attempt {
			return fmt.Errorf("attempt %d", now)
		}
		return nil
	})
}
