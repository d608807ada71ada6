package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// NodeStatus is where one node stands.
type NodeStatus struct {
	Node Node
	// Record is the node's Job; nil when there is none.
	Record *Record
	// Decision is what the dispatcher does next.
	Decision Decision
}

// Survey decides for every node that the target's settings cover, in the order of the list.
func Survey(t Target, nodes []corev1.Node, jobs []batchv1.Job, now time.Time) []NodeStatus {
	byName := make(map[string]*batchv1.Job, len(jobs))
	for i := range jobs {
		byName[jobs[i].Name] = &jobs[i]
	}
	var all []NodeStatus
	for i := range nodes {
		if !served(t.Settings, &nodes[i]) {
			continue
		}
		status := NodeStatus{Node: ReadNode(&nodes[i])}
		if job, ok := byName[NodeKey(nodes[i].Name)]; ok {
			record := ReadRecord(job)
			status.Record = &record
		}
		status.Decision = Decide(t, status.Node, status.Record, now)
		all = append(all, status)
	}
	return all
}

// Where says where the dispatcher's objects are.
type Where struct {
	// Config is the ConfigMap with the settings.
	Config client.ObjectKey
	// Jobs is the namespace of Jobs and snapshots.
	Jobs string
}

// DefaultWhere is where the shipped manifests put everything.
func DefaultWhere() Where {
	return Where{
		Config: client.ObjectKey{Namespace: ManagerNamespace, Name: ConfigName},
		Jobs:   JobsNamespace,
	}
}

// Plan is everything that the dispatcher knows and would do, seen from outside: what the kubectl plugin prints.
type Plan struct {
	Config Config
	// Resolution says what would be delivered, and what is held.
	Resolution Resolution
	// Target is what nodes get; nil while nothing was ever accepted.
	Target *Target
	// Nodes has one entry per node that is served. A node whose state is [Queued] gets a Job when its turn comes.
	Nodes []NodeStatus
	// Faults are snapshots that are not what they say, and are left out of account.
	Faults []error
}

// Load reads everything from the API server and makes the dispatcher's own decisions, writing nothing.
func Load(ctx context.Context, reader client.Reader, where Where, now time.Time) (Plan, error) {
	object := &corev1.ConfigMap{}
	if err := reader.Get(ctx, where.Config, object); err != nil {
		return Plan{}, fmt.Errorf("read the configuration: %w", err)
	}
	config, err := ParseConfig(object.Data)
	if err != nil {
		return Plan{}, fmt.Errorf("configuration %s: %w", where.Config, err)
	}
	p := Plan{Config: config}
	stored, err := readSnapshots(ctx, reader, where.Jobs)
	if err != nil {
		return Plan{}, err
	}
	p.Faults = stored.faults
	contents, err := readSources(ctx, reader, config.Refs())
	if err != nil {
		return Plan{}, err
	}
	p.Resolution = Resolve(config.Settings, contents, stored.good, now)
	deliver := p.Resolution.Deliver()
	if deliver == nil {
		return p, nil
	}
	target, err := NewTarget(*deliver, config, where.Jobs)
	if err != nil {
		return Plan{}, err
	}
	p.Target = &target
	nodes, jobs := &corev1.NodeList{}, &batchv1.JobList{}
	err = errors.Join(reader.List(ctx, nodes), reader.List(ctx, jobs, client.InNamespace(where.Jobs)))
	if err != nil {
		return Plan{}, fmt.Errorf("list nodes and Jobs: %w", err)
	}
	p.Nodes = Survey(target, nodes.Items, jobs.Items, now)
	return p, nil
}

// stored is what is in the snapshots' namespace.
type stored struct {
	good    []Snapshot
	faults  []error
	objects map[string]*corev1.ConfigMap
}

// readSnapshots lists all snapshots. Those that cannot be trusted are faults.
func readSnapshots(ctx context.Context, reader client.Reader, namespace string) (stored, error) {
	list := &corev1.ConfigMapList{}
	err := reader.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{LabelManagedBy: ManagedBy})
	if err != nil {
		return stored{}, fmt.Errorf("list snapshots: %w", err)
	}
	s := stored{objects: map[string]*corev1.ConfigMap{}}
	for i := range list.Items {
		object := &list.Items[i]
		s.objects[object.Name] = object
		snapshot, err := ReadSnapshot(object)
		if err != nil {
			s.faults = append(s.faults, err)
			continue
		}
		s.good = append(s.good, snapshot)
	}
	return s, nil
}

// readSources reads every source. That one is missing or may not be read is a finding about it; any other failure is the
// API server's, says nothing about the source, and is an error.
func readSources(ctx context.Context, reader client.Reader, refs []Ref) (map[Ref]Content, error) {
	contents := map[Ref]Content{}
	for _, ref := range refs {
		object := &corev1.ConfigMap{}
		err := reader.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, object)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			return nil, fmt.Errorf("read source %s: %w", ref, err)
		}
		contents[ref] = readContent(ref, object, err)
	}
	return contents, nil
}
