package scale

import (
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/fields"
	toolscache "k8s.io/client-go/tools/cache"

	"kubelet-ca-courier/dispatcher"
)

// completions follows the Jobs.
type completions struct {
	mu   sync.Mutex
	done map[string]map[string]bool // by bundle, by Job
	last map[string]time.Time       // by bundle
	here map[string]bool
	more chan struct{}
}

func (b *bench) watchJobs() *completions {
	b.t.Helper()
	c := &completions{done: map[string]map[string]bool{}, last: map[string]time.Time{}, here: map[string]bool{}, more: make(chan struct{}, 1)}
	_, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: toolscache.NewListWatchFromClient(b.client.BatchV1().RESTClient(), "jobs", dispatcher.JobsNamespace, fields.Everything()),
		ObjectType:    &batchv1.Job{},
		Handler: toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { c.see(object.(*batchv1.Job)) },
			UpdateFunc: func(_, object any) { c.see(object.(*batchv1.Job)) },
			DeleteFunc: func(object any) { c.gone(object) },
		},
	})
	go informer.RunWithContext(b.t.Context())
	return c
}

func (c *completions) see(job *batchv1.Job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.here[job.Name] = true
	record := dispatcher.ReadRecord(job)
	if record.Phase != dispatcher.Succeeded {
		return
	}
	if c.done[record.Hash] == nil {
		c.done[record.Hash] = map[string]bool{}
	}
	if c.done[record.Hash][job.Name] {
		return
	}
	c.done[record.Hash][job.Name], c.last[record.Hash] = true, time.Now()
	c.poke()
}

func (c *completions) gone(object any) {
	key, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(object)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, name, _ := strings.Cut(key, "/")
	delete(c.here, name)
}

func (c *completions) poke() {
	select {
	case c.more <- struct{}{}:
	default:
	}
}

func (c *completions) none() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.here) == 0
}

// wait returns the time at which the last node's Job for the bundle was seen to complete.
func (c *completions) wait(t testing.TB, hash string) time.Time {
	t.Helper()
	deadline := time.After(patience)
	for {
		c.mu.Lock()
		count, last := len(c.done[hash]), c.last[hash]
		c.mu.Unlock()
		if count == *nodes {
			return last
		}
		select {
		case <-c.more:
		case <-deadline:
			t.Fatalf("only %d of %d nodes have a completed Job", count, *nodes)
		}
	}
}
