package node_test

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"kubelet-ca-courier/node"
)

// loader is what a kubelet loads its client CAs with: it watches the file and keeps what it last read.
type loader struct {
	content *dynamiccertificates.DynamicFileCAContent
	changed chan struct{}
}

// Enqueue is called after each change (dynamiccertificates.Listener).
func (l *loader) Enqueue() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// startLoader starts the kubelet's loader for a file that is there and returns when it watches.
func startLoader(t *testing.T, path string) *loader {
	t.Helper()
	content, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", path)
	if err != nil {
		t.Fatal(err)
	}
	l := &loader{content: content, changed: make(chan struct{}, 1)}
	content.AddListener(l)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		content.Run(ctx, 1)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return l
}

// holds reports whether the loader holds the bundle before the limit is over, and how long it took.
func (l *loader) holds(want []byte, limit time.Duration) (time.Duration, bool) {
	start := time.Now()
	over := time.After(limit)
	for !bytes.Equal(l.content.CurrentCABundleContent(), want) {
		select {
		case <-l.changed:
		case <-over:
			return limit, false
		}
	}
	return time.Since(start), true
}

// patient bounds a wait that ends early when all is well.
const patient = 30 * time.Second

func TestTheKubeletsLoaderSeesEveryReplacement(t *testing.T) {
	s := newStage(t)
	s.inRealTime()
	snapshots := [][]byte{canonical(t, authority(t, "one")), canonical(t, authority(t, "two"), authority(t, "three"))}
	write(t, s.destination, snapshots[0])
	kubelet := startLoader(t, s.destination)
	settle(t, s.destination, kubelet, snapshots[1])

	const replacements = 100
	var slowest time.Duration
	for i := range replacements {
		want := snapshots[i%2]
		wantResult(t, s.land(s.mount(t, want)), node.Replaced, node.ExitOK)
		took, ok := kubelet.holds(want, patient)
		if !ok {
			t.Fatalf("replacement %d was not seen", i+1)
		}
		slowest = max(slowest, took)
	}
	t.Logf("%d of %d replacements seen, the slowest after %v", replacements, replacements, slowest)
}

// settle returns when the loader watches the file and holds the content. A loader that starts reads the file twice of its
// own accord, so the third change that it sees came through the watch.
func settle(t *testing.T, path string, kubelet *loader, content []byte) {
	t.Helper()
	for _, comment := range []string{"# one\n", "# two\n", ""} {
		changed := append([]byte(comment), content...)
		write(t, path, changed)
		if _, ok := kubelet.holds(changed, patient); !ok {
			t.Fatal("the loader does not watch the file")
		}
	}
}

func TestALandingThatIsStoppedAnywhereIsMadeGoodByTheNext(t *testing.T) {
	old, snapshot := canonical(t, authority(t, "old")), canonical(t, authority(t, "new"), authority(t, "newer"))
	for _, c := range []struct {
		name string
		held []byte // nothing when nil
		want []byte
	}{
		{"replacing", old, snapshot},
		{"creating", nil, snapshot},
		{"writing nothing", append([]byte("# the same\n"), snapshot...), append([]byte("# the same\n"), snapshot...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			steps := countSteps(t, c.held, snapshot)
			for step := range steps {
				for _, moment := range []moment{before, during, after} {
					t.Run(fmt.Sprintf("%s step %d of %d", moment, step+1, steps), func(t *testing.T) {
						stopAndLandAgain(t, c.held, snapshot, c.want, step, moment)
					})
				}
			}
		})
	}
}

// countSteps returns how many operations a landing makes that is not stopped.
func countSteps(t *testing.T, held, snapshot []byte) int {
	t.Helper()
	s := newStage(t)
	if held != nil {
		write(t, s.destination, held)
	}
	disk := &stopping{stopAt: -1}
	s.lander.Disk = disk
	if got := s.land(s.mount(t, snapshot)); got.Code != node.ExitOK {
		t.Fatalf("%s", got.Line(0))
	}
	return disk.steps
}

func stopAndLandAgain(t *testing.T, held, snapshot, want []byte, step int, moment moment) {
	t.Helper()
	s := newStage(t)
	task := s.mount(t, snapshot)
	var kubelet *loader
	if held != nil {
		write(t, s.destination, held)
		kubelet = startLoader(t, s.destination)
		settle(t, s.destination, kubelet, held)
	}

	s.lander.Disk = &stopping{stopAt: step, moment: moment}
	s.land(task)
	switch there := exists(t, s.destination); {
	case !there && held != nil:
		t.Fatal("the destination is gone")
	case there:
		if got := read(t, s.destination); !bytes.Equal(got, held) && !bytes.Equal(got, snapshot) {
			t.Fatalf("the destination holds %d bytes that are neither the old nor the new content", len(got))
		}
	}

	s.lander.Disk = node.OS{}
	s.inRealTime() // not before: a program that was stopped waits for nothing
	if got := s.land(task); got.Code != node.ExitOK || !got.Noticed {
		t.Fatalf("the next landing: %s", got.Line(0))
	}
	wantFile(t, s.destination, want)
	wantAlone(t, s.destination)
	if kubelet == nil {
		kubelet = startLoader(t, s.destination)
	}
	if _, ok := kubelet.holds(want, patient); !ok {
		t.Error("the loader does not hold what the file holds")
	}
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	entry, err := node.OS{}.Inspect(filepath.Clean(path))
	if err != nil {
		t.Fatal(err)
	}
	return entry.Kind != node.Missing
}
