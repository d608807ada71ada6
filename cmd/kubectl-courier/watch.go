package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/dispatcher"
)

const (
	// redraw is how often --watch looks at its caches. The API server is asked for two ConfigMaps each time, whatever
	// the number of nodes.
	redraw = time.Second
	// watchRows is how many nodes are shown below the progress bar: those that need an admin most.
	watchRows = 10
)

// watchReader lists from caches that watches fill, and gets single objects live.
type watchReader struct {
	client.Reader
	cache client.Reader
}

// List implements client.Reader. Events are not worth a watch.
func (w watchReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, events := list.(*corev1.EventList); events {
		return w.Reader.List(ctx, list, opts...)
	}
	return w.cache.List(ctx, list, opts...)
}

// watchReader starts watches with the dispatcher's own trimmed caches and waits until they are filled.
func (c cli) watchReader(ctx context.Context) (client.Reader, error) {
	live, err := c.reader()
	if err != nil {
		return nil, err
	}
	config, err := c.restConfig()
	if err != nil {
		return nil, err
	}
	options := dispatcher.CacheOptions(dispatcher.DefaultWhere().Jobs)
	options.Scheme = scheme.Scheme
	cached, err := cache.New(config, options)
	if err != nil {
		return nil, fmt.Errorf("watching the cluster: %w", err)
	}
	for _, object := range []client.Object{&corev1.Node{}, &batchv1.Job{}, &corev1.ConfigMap{}} {
		if _, err := cached.GetInformer(ctx, object, cache.BlockUntilSynced(false)); err != nil {
			return nil, fmt.Errorf("watching the cluster: %w", err)
		}
	}
	go func() { _ = cached.Start(ctx) }() // it only ever fails when started twice
	if !cached.WaitForCacheSync(ctx) {
		return nil, errors.New("watching the cluster: it did not answer in time")
	}
	return watchReader{Reader: live, cache: cached}, nil
}

// follow redraws until every Ready node holds the bundle, or ctx ends, and returns where everything stands then.
func (o *statusOptions) follow(ctx context.Context) (*rollout, error) {
	reader, err := o.watchReader(ctx)
	if err != nil {
		return nil, err
	}
	ticker := time.NewTicker(redraw)
	defer ticker.Stop()
	s := screen{w: o.streams.ErrOut, terminal: isTerminal(o.streams.ErrOut)}
	defer s.clear()
	var last *rollout
	for {
		r, err := loadRollout(ctx, reader, time.Now())
		switch {
		case err != nil && (last == nil || !ended(err)):
			return nil, err
		case err != nil:
			return last, nil
		}
		last = r
		s.show(r)
		if r.settled() {
			return r, nil
		}
		select {
		case <-ctx.Done():
			return r, nil
		case <-ticker.C:
		}
	}
}

// screen shows a rollout as it goes: redrawn in place on a terminal, a line for each change elsewhere.
type screen struct {
	w        io.Writer
	terminal bool
	lines    int
	last     string
}

// show draws the rollout.
func (s *screen) show(r *rollout) {
	headline := r.headline(colours{on: s.terminal})
	if !s.terminal {
		if headline != s.last {
			_, _ = fmt.Fprintln(s.w, headline)
		}
		s.last = headline
		return
	}
	lines := []string{fmt.Sprintf("%s %3d%%  %s", bar(r.Delivered, r.Total), percent(r.Delivered, r.Total), headline)}
	for _, n := range r.Nodes {
		if n.State == dispatcher.Delivered || len(lines) > watchRows {
			break
		}
		lines = append(lines, strings.TrimRight(fmt.Sprintf("  %-40s %-11s %s", n.Node, n.State, n.Detail), " "))
	}
	s.clear()
	_, _ = fmt.Fprintln(s.w, strings.Join(lines, "\n"))
	s.lines = len(lines)
}

// clear takes away what was drawn.
func (s *screen) clear() {
	if s.terminal && s.lines > 0 {
		_, _ = fmt.Fprintf(s.w, "\x1b[%dA\x1b[J", s.lines)
	}
	s.lines = 0
}

// percent of nothing is all of it.
func percent(done, total int) int {
	if total == 0 {
		return 100
	}
	return 100 * done / total
}
