package gate

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/bundle/bundletest"
	"kubelet-ca-courier/webhook"
)

// label changes nothing that the gate looks at.
func label(value string) map[string]any {
	return map[string]any{"metadata": map[string]any{"labels": map[string]any{"touched": value}}}
}

func TestWhileTheGateIsAway(t *testing.T) {
	c := startCluster(t, "openshift", openshift())
	a, b := signer(t, "a"), signer(t, "b")
	gate := c.startReplica(t)
	if err := c.admin.Create(t.Context(), c.object(a.PEM)); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{operator, recovery} {
		err := c.as(t, user, nil).Patch(t.Context(), c.object(nil), patchOf(t, types.MergePatchType, merge("data", "x")))
		if fmt.Sprint(codesOf(err)) != "[NotPEM]" {
			t.Errorf("%s is not judged while the gate is up: %v", user, err)
		}
	}
	c.retire(t, gate)

	extended := merge("data", string(bundletest.Bundle(a, b)))
	t.Run("everyone is refused", func(t *testing.T) {
		for _, user := range []string{"", "alice", "system:serviceaccount:kube-system:generic-garbage-collector"} {
			err := c.as(t, user, nil).Patch(t.Context(), c.object(nil), patchOf(t, types.MergePatchType, extended))
			if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "failed calling webhook") {
				t.Errorf("%q: %v, want a failed call", user, err)
			}
			if err := c.as(t, user, nil).Delete(t.Context(), c.object(nil)); !apierrors.IsInternalError(err) {
				t.Errorf("%q deletes: %v, want a failed call", user, err)
			}
		}
	})
	t.Run("the operator and the recovery writer pass", func(t *testing.T) {
		for _, user := range []string{operator, recovery} {
			if err := c.as(t, user, nil).Patch(t.Context(), c.object(nil), patchOf(t, types.MergePatchType, extended)); err != nil {
				t.Errorf("%s: %v", user, err)
			}
		}
	})
	t.Run("other ConfigMaps are not touched", func(t *testing.T) {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.guarded.Namespace, Name: "other"}}
		if err := c.admin.Create(t.Context(), object); err != nil {
			t.Error(err)
		}
	})
	t.Run("a restarting kube-apiserver becomes ready", func(t *testing.T) { c.restartsAPIServer(t) })
	t.Run("the namespace controller can empty the namespace", func(t *testing.T) {
		as := c.as(t, namespaceController, nil)
		if err := as.DeleteAllOf(t.Context(), &corev1.ConfigMap{}, client.InNamespace(c.guarded.Namespace)); err != nil {
			t.Error(err)
		}
	})
}

// restartsAPIServer stops kube-apiserver and starts it again.
func (c *cluster) restartsAPIServer(t *testing.T) {
	t.Helper()
	server := c.env.ControlPlane.GetAPIServer()
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatalf("kube-apiserver does not become ready: %v", err)
	}
	eventually(t, func() error {
		return c.admin.Get(t.Context(), client.ObjectKey{Name: "kube-system"}, &corev1.Namespace{})
	})
}

// TestKubeAPIServerRestartsWhileTheGateOfItsOwnConfigMapIsAway uses the overlay that guards the ConfigMap which kube-apiserver
// writes itself when it starts.
func TestKubeAPIServerRestartsWhileTheGateOfItsOwnConfigMapIsAway(t *testing.T) {
	c := startCluster(t, "kubeadm", webhook.Ref{Namespace: "kube-system", Name: "extension-apiserver-authentication", Key: "client-ca-file"})
	object := c.object(nil)
	eventually(t, func() error { return c.admin.Get(t.Context(), client.ObjectKeyFromObject(object), object) })
	err := c.admin.Patch(t.Context(), c.object(nil), patchOf(t, types.MergePatchType, label("1")))
	if !apierrors.IsInternalError(err) {
		t.Fatalf("the gate is not in the way of an ordinary writer: %v", err)
	}
	// Gone from storage, kube-apiserver has to write it anew.
	if err := c.as(t, "system:apiserver", nil).Delete(t.Context(), c.object(nil)); err != nil {
		t.Fatal(err)
	}
	c.restartsAPIServer(t)
	eventually(t, func() error { return c.admin.Get(t.Context(), client.ObjectKeyFromObject(object), object) })
}

func TestNoWriteFailsWhileReplicasAreReplaced(t *testing.T) {
	c := startCluster(t, "openshift", openshift())
	replicas := []*replica{c.startReplica(t), c.startReplica(t)}
	if err := c.admin.Create(t.Context(), c.object(signer(t, "a").PEM)); err != nil {
		t.Fatal(err)
	}
	var writes atomic.Int64
	stop, ended := make(chan struct{}), make(chan error, 4)
	for writer := range cap(ended) {
		as := c.as(t, fmt.Sprint("writer-", writer), nil)
		go func() {
			for {
				select {
				case <-stop:
					ended <- nil
					return
				default:
				}
				if err := as.Patch(t.Context(), c.object(nil), patchOf(t, types.MergePatchType, label(fmt.Sprint(writer, "-", writes.Load())))); err != nil {
					ended <- err
					return
				}
				writes.Add(1)
			}
		}()
	}
	progress := func() {
		target := writes.Load() + 50
		eventually(t, func() error {
			select {
			case err := <-ended:
				t.Fatalf("a writer failed after %d writes: %v", writes.Load(), err)
			default:
			}
			if writes.Load() < target {
				return errors.New("the writers do not get on")
			}
			return nil
		})
	}
	for round := range 3 {
		for i, old := range replicas {
			progress()
			replicas[i] = c.startReplica(t) // the new one first: maxSurge 1, maxUnavailable 0
			c.retire(t, old)
			t.Logf("round %d, replica %d replaced after %d writes and %d reviews", round+1, i+1, writes.Load(), c.reviews(t))
		}
	}
	progress()
	close(stop)
	for range cap(ended) {
		if err := <-ended; err != nil {
			t.Errorf("a writer failed: %v", err)
		}
	}
	if reviews := int64(c.reviews(t)); reviews < writes.Load() {
		t.Errorf("%d reviews of %d writes", reviews, writes.Load())
	}
}

// TestAReviewCostsAWriteNextToNothing compares writes that the gate judges with writes that a handler on the same server lets
// through unseen.
func TestAReviewCostsAWriteNextToNothing(t *testing.T) {
	c := startCluster(t, "openshift", openshift())
	c.hooks["/allow"] = alwaysAllow()
	c.startReplica(t)
	unseen := c.object(nil)
	unseen.Name = "unseen"
	c.applyAlwaysAllow(t, unseen)
	a, b := signer(t, "a"), signer(t, "b")
	texts := [][]byte{bundletest.Bundle(a, b), bundletest.Bundle(b, a)}
	judged := c.object(texts[0])
	unseen.Data = judged.Data
	for _, object := range []*corev1.ConfigMap{judged, unseen} {
		if err := c.admin.Create(t.Context(), object.DeepCopy()); err != nil {
			t.Fatal(err)
		}
	}
	const most, rounds = 1.1, 5
	var seen []string
	for range rounds {
		var ours, theirs []time.Duration
		for i := range 200 {
			patch := patchOf(t, types.MergePatchType, merge("data", string(texts[(i+1)%2])))
			ours = append(ours, c.timed(t, judged, patch))
			theirs = append(theirs, c.timed(t, unseen, patch))
		}
		half, tail := ratioAt(ours, theirs, 0.50), ratioAt(ours, theirs, 0.99)
		seen = append(seen, fmt.Sprintf("p50 %.2f, p99 %.2f", half, tail))
		if half <= most && tail <= most {
			t.Logf("times as long as with a handler that allows everything: %s", strings.Join(seen, "; "))
			return
		}
	}
	t.Errorf("in none of %d rounds at most %.1f times as long as with a handler that allows everything: %s", rounds, most, strings.Join(seen, "; "))
}
