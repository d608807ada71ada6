package dispatcher

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// recheck is how often sources and snapshots are read even if no watch says anything, and how long a held change waits
// for time to make it acceptable.
const recheck = 5 * time.Minute

// Rollout turns accepted sources into snapshots and has them delivered.
type Rollout struct {
	// Client writes snapshots.
	Client client.Client
	// Reader reads from the API server. Nothing here is decided on a cache: a dispatcher that has just become leader
	// must not take an old snapshot for the current one.
	Reader client.Reader
	// Where says where everything is.
	Where Where
	// Config is the configuration.
	Config *ConfigStore
	// Watch has the given sources watched, and no others.
	Watch func(refs []Ref)
	// Clock tells the time.
	Clock clock.PassiveClock
	// Delivery delivers.
	Delivery *Delivery
	// Report tells people.
	Report *Report
}

// Reconcile brings snapshots in line with the sources, and the delivery in line with the snapshots.
func (r *Rollout) Reconcile(ctx context.Context) (reconcile.Result, error) {
	config, ok, err := r.config(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !ok {
		return reconcile.Result{RequeueAfter: recheck}, nil
	}
	r.Watch(config.Refs())
	contents, err := readSources(ctx, r.Reader, config.Refs())
	if err != nil {
		return reconcile.Result{}, err
	}
	newest := r.Delivery.newest.Load() // before the snapshots are read: that of a Job was written before the Job
	snapshots, err := readSnapshots(ctx, r.Reader, r.Where.Jobs)
	if err != nil {
		return reconcile.Result{}, err
	}
	guarded := guardedObject(config.Guarded, contents[config.Guarded])
	resolution := Resolve(config.Settings, contents, snapshots.good, r.Clock.Now())
	resolution.outrank(newest)
	if resolution.Next != nil {
		if err := r.write(ctx, *resolution.Next, snapshots); err != nil {
			return reconcile.Result{}, err
		}
		r.Report.accepted(ctx, guarded, resolution)
	}
	r.Report.holds(ctx, guarded, resolution.Holds)
	if err := r.deliver(ctx, config, guarded, resolution, snapshots); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.prune(ctx, snapshots, resolution); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: recheck}, nil
}

// config reads the configuration and tells what is wrong with it. It returns the last good one, and false if there never
// was one.
func (r *Rollout) config(ctx context.Context) (Config, bool, error) {
	object := &corev1.ConfigMap{}
	err := r.Reader.Get(ctx, r.Where.Config, object)
	switch {
	case apierrors.IsNotFound(err):
		r.Config.Store(nil)
	case err != nil:
		return Config{}, false, fmt.Errorf("read the configuration: %w", err)
	default:
		r.Config.Store(object)
	}
	uid, fault := r.Config.Fault()
	r.Report.config(ctx, r.Where.Config, uid, fault)
	config, ok := r.Config.Config()
	return config, ok, nil
}

// deliver hands the snapshot over to the delivery.
func (r *Rollout) deliver(ctx context.Context, config Config, guarded *corev1.ObjectReference, resolution Resolution, snapshots stored) error {
	snapshot := resolution.Deliver()
	if snapshot == nil {
		return nil
	}
	target, err := NewTarget(*snapshot, config, r.Where.Jobs)
	if err != nil {
		return fmt.Errorf("build the Jobs: %w", err)
	}
	history := len(snapshots.good) > 1 || len(snapshots.good) == 1 && snapshots.good[0].Name != snapshot.Name
	r.Report.concerns(guarded) // nodes are at work before Begin returns
	begun, err := r.Delivery.Begin(ctx, target, history)
	if begun {
		r.Report.begun(ctx, guarded, target, r.Delivery.Counts())
	}
	return err
}

// write stores a snapshot. One that exists already gets its new place in the order; its content cannot change. Something
// else under its name is deleted, and the snapshot written in the next pass.
func (r *Rollout) write(ctx context.Context, s Snapshot, snapshots stored) error {
	object, err := s.Object(r.Where.Jobs)
	if err != nil {
		return err
	}
	existing, ok := snapshots.objects[s.Name]
	switch {
	case !ok:
		err = r.Client.Create(ctx, object)
	case !snapshots.holds(s):
		if err := r.deleteAsRead(ctx, existing); err != nil {
			return fmt.Errorf("delete what is not snapshot %s: %w", s.Name, err)
		}
		return fmt.Errorf("deleted what was not snapshot %s; writing it again", s.Name)
	default:
		object.ResourceVersion = existing.ResourceVersion
		err = r.Client.Update(ctx, object)
	}
	if err != nil {
		return fmt.Errorf("write snapshot %s: %w", s.Name, err)
	}
	return nil
}

// deleteAsRead deletes a ConfigMap unless it has changed since it was read.
func (r *Rollout) deleteAsRead(ctx context.Context, object *corev1.ConfigMap) error {
	return r.Client.Delete(ctx, object, client.Preconditions{UID: &object.UID, ResourceVersion: &object.ResourceVersion})
}

// prune deletes snapshots beyond the history. The one that was just written counts.
//
// Each is deleted only as it was read: another dispatcher may have moved it to the front meanwhile.
func (r *Rollout) prune(ctx context.Context, snapshots stored, resolution Resolution) error {
	kept := make([]Snapshot, 0, len(snapshots.good)+1)
	for _, s := range snapshots.good {
		if resolution.Next == nil || s.Name != resolution.Next.Name {
			kept = append(kept, s)
		}
	}
	if resolution.Next != nil {
		kept = append(kept, *resolution.Next)
	}
	for _, s := range surplus(kept) {
		if err := r.deleteAsRead(ctx, snapshots.objects[s.Name]); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete old snapshot %s: %w", s.Name, err)
		}
	}
	return nil
}

// holds reports whether the snapshot is stored with its true content.
func (s stored) holds(snapshot Snapshot) bool {
	for _, good := range s.good {
		if good.Name == snapshot.Name {
			return true
		}
	}
	return false
}

// guardedObject is what events about a rollout are attached to.
func guardedObject(ref Ref, content Content) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "ConfigMap", Namespace: ref.Namespace, Name: ref.Name, UID: content.UID,
	}
}
