package decade

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"kubelet-ca-courier/dispatcher"
)

// Users who write.
const (
	userCourier  = "system:serviceaccount:kubelet-ca-courier-system:courier"
	userOperator = "system:serviceaccount:openshift-kube-apiserver-operator:kube-apiserver-operator"
	userRecovery = "system:serviceaccount:openshift-kube-apiserver:localhost-recovery-client"
	userAdmin    = "system:admin"
	userSystem   = "system:masters"
)

// id names an object. Kinds are the resources' names.
type id struct{ kind, namespace, name string }

// apiServer is storage with optimistic locking, watches and admission.
type apiServer struct {
	w       *world
	up      since
	version int
	objects map[id]client.Object
	watches []func(k id, old, now client.Object)
}

func newAPIServer(w *world) *apiServer {
	a := &apiServer{w: w, objects: map[id]client.Object{}}
	a.up.set(true, w.now.Add(-day))
	return a
}

// watch has a party told of every change, at once; how late it looks is its own affair.
func (a *apiServer) watch(see func(k id, old, now client.Object)) { a.watches = append(a.watches, see) }

// configMap returns the ConfigMap, or nil.
func (a *apiServer) configMap(namespace, name string) *corev1.ConfigMap {
	if object, found := a.objects[id{"configmaps", namespace, name}]; found {
		return object.(*corev1.ConfigMap)
	}
	return nil
}

// all returns the objects of a kind in a namespace, in order.
func (a *apiServer) all(kind, namespace string) []client.Object {
	var keys []id
	for k := range a.objects {
		if k.kind == kind && k.namespace == namespace {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(x, y id) int { return strings.Compare(x.name, y.name) })
	objects := make([]client.Object, 0, len(keys))
	for _, k := range keys {
		objects = append(objects, a.objects[k])
	}
	return objects
}

// put creates or updates an object, as the user, through admission. An object with a resource version is only written
// over that version.
func (a *apiServer) put(user string, k id, object client.Object) error {
	old, exists := a.objects[k]
	switch {
	case !a.up.on:
		return apierrors.NewServiceUnavailable("the API server is away")
	case !exists && object.GetResourceVersion() != "":
		return apierrors.NewNotFound(resource(k), k.name)
	case exists && object.GetResourceVersion() != "" && object.GetResourceVersion() != old.GetResourceVersion():
		return apierrors.NewConflict(resource(k), k.name, fmt.Errorf("it was changed"))
	}
	if err := a.w.gate.admit(user, k, old, object); err != nil {
		return err
	}
	a.version++
	object = object.DeepCopyObject().(client.Object)
	object.SetResourceVersion(strconv.Itoa(a.version))
	if !exists {
		object.SetUID(types.UID("uid-" + strconv.Itoa(a.version)))
		object.SetCreationTimestamp(metav1.Time{Time: a.w.now.Truncate(1e9)})
	} else {
		object.SetUID(old.GetUID())
		object.SetCreationTimestamp(old.GetCreationTimestamp())
	}
	object.SetNamespace(k.namespace)
	a.objects[k] = object
	a.announce(k, old, object)
	return nil
}

// remove deletes an object for good.
func (a *apiServer) remove(user string, k id) error {
	old, exists := a.objects[k]
	switch {
	case !a.up.on:
		return apierrors.NewServiceUnavailable("the API server is away")
	case !exists:
		return apierrors.NewNotFound(resource(k), k.name)
	}
	if err := a.w.gate.admit(user, k, old, nil); err != nil {
		return err
	}
	a.version++
	delete(a.objects, k)
	a.announce(k, old, nil)
	return nil
}

// change edits an object as the system does, without admission.
func (a *apiServer) change(k id, edit func(client.Object)) {
	old, exists := a.objects[k]
	if !exists {
		return
	}
	object := old.DeepCopyObject().(client.Object)
	edit(object)
	a.version++
	object.SetResourceVersion(strconv.Itoa(a.version))
	a.objects[k] = object
	a.announce(k, old, object)
}

func (a *apiServer) announce(k id, old, now client.Object) {
	for _, see := range a.watches {
		see(k, old, now)
	}
}

func resource(k id) schema.GroupResource { return schema.GroupResource{Resource: k.kind} }

// rights are the verbs of the courier account in the Jobs' namespace and on nodes, by resource, as shipped.
var rights = sync.OnceValue(func() map[string][]string {
	text, err := os.ReadFile("../../manifests/base/rbac.yaml")
	if err != nil {
		panic(err)
	}
	verbs := map[string][]string{}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		role := rbacv1.Role{}
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			panic(err)
		}
		if role.Kind != "ClusterRole" && (role.Kind != "Role" || role.Namespace != dispatcher.JobsNamespace) {
			continue
		}
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				verbs[resource] = append(verbs[resource], rule.Verbs...)
			}
		}
	}
	return verbs
})

// access is the dispatcher's client: its writes go to the API server, its reads to the cache or, when live, past it.
type access struct {
	client.Client
	c    *courier
	live bool
}

// kindOf says what an object, or a list of them, is stored as.
func kindOf(object any) string {
	switch object.(type) {
	case *corev1.Node, *corev1.NodeList:
		return "nodes"
	case *batchv1.Job, *batchv1.JobList:
		return "jobs"
	case *corev1.ConfigMap, *corev1.ConfigMapList:
		return "configmaps"
	case *corev1.Pod, *corev1.PodList:
		return "pods"
	}
	panic(fmt.Sprintf("nothing is known of %T", object))
}

// permit says no where the shipped role does not give the right.
func (a access) permit(verb string, k id) error {
	if (k.namespace == dispatcher.JobsNamespace || k.kind == "nodes") && !slices.Contains(rights()[k.kind], verb) {
		return apierrors.NewForbidden(resource(k), k.name, fmt.Errorf("courier cannot %s %s", verb, k.kind))
	}
	return nil
}

// from is where reads go.
func (a access) from(k id) (map[id]client.Object, error) {
	if !a.live && k.kind != "pods" {
		return a.c.cache, nil
	}
	if !a.c.w.api.up.on {
		return nil, apierrors.NewServiceUnavailable("the API server is away")
	}
	return a.c.w.api.objects, nil
}

// Get implements client.Reader.
func (a access) Get(_ context.Context, key client.ObjectKey, out client.Object, _ ...client.GetOption) error {
	k := id{kindOf(out), key.Namespace, key.Name}
	a.c.w.stats[lookups]++
	objects, err := a.from(k)
	if err != nil {
		return err
	}
	switch object := objects[k].(type) {
	case *corev1.Node:
		object.DeepCopyInto(out.(*corev1.Node))
	case *batchv1.Job:
		object.DeepCopyInto(out.(*batchv1.Job))
	case *corev1.ConfigMap:
		object.DeepCopyInto(out.(*corev1.ConfigMap))
	default:
		return apierrors.NewNotFound(resource(k), k.name)
	}
	return nil
}

// List implements client.Reader.
func (a access) List(_ context.Context, out client.ObjectList, opts ...client.ListOption) error {
	options := (&client.ListOptions{}).ApplyOptions(opts)
	kind := kindOf(out)
	a.c.w.stats[lookups]++
	objects, err := a.from(id{kind: kind})
	if err != nil {
		return err
	}
	keys := slices.SortedFunc(maps.Keys(objects), func(x, y id) int { return strings.Compare(x.name, y.name) })
	for _, k := range keys {
		object := objects[k]
		if k.kind != kind || options.Namespace != "" && k.namespace != options.Namespace ||
			options.LabelSelector != nil && !options.LabelSelector.Matches(labels.Set(object.GetLabels())) {
			continue
		}
		switch list := out.(type) {
		case *corev1.NodeList:
			list.Items = append(list.Items, *object.(*corev1.Node).DeepCopy())
		case *batchv1.JobList:
			list.Items = append(list.Items, *object.(*batchv1.Job).DeepCopy())
		case *corev1.ConfigMapList:
			list.Items = append(list.Items, *object.(*corev1.ConfigMap).DeepCopy())
		case *corev1.PodList:
			list.Items = append(list.Items, *object.(*corev1.Pod).DeepCopy())
		}
	}
	return nil
}

// Create implements client.Writer.
func (a access) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	if event, ok := object.(*eventsv1.Event); ok {
		a.c.event(event)
		return nil
	}
	k := id{kindOf(object), object.GetNamespace(), object.GetName()}
	return a.c.write(func() error {
		if err := a.permit("create", k); err != nil {
			return err
		}
		if _, exists := a.c.w.api.objects[k]; exists && a.c.w.api.up.on {
			return apierrors.NewAlreadyExists(resource(k), k.name)
		}
		if err := a.c.w.api.put(userCourier, k, object); err != nil {
			return err
		}
		stored := a.c.w.api.objects[k]
		object.SetUID(stored.GetUID())
		object.SetResourceVersion(stored.GetResourceVersion())
		object.SetCreationTimestamp(stored.GetCreationTimestamp())
		return nil
	})
}

// Update implements client.Writer.
func (a access) Update(_ context.Context, object client.Object, _ ...client.UpdateOption) error {
	k := id{kindOf(object), object.GetNamespace(), object.GetName()}
	return a.c.write(func() error {
		if err := a.permit("update", k); err != nil {
			return err
		}
		return a.c.w.api.put(userCourier, k, object)
	})
}

// Delete implements client.Writer.
func (a access) Delete(_ context.Context, object client.Object, opts ...client.DeleteOption) error {
	k := id{kindOf(object), object.GetNamespace(), object.GetName()}
	options := (&client.DeleteOptions{}).ApplyOptions(opts)
	return a.c.write(func() error {
		if err := a.permit("delete", k); err != nil {
			return err
		}
		stored, exists := a.c.w.api.objects[k]
		if exists && options.Preconditions != nil && (options.Preconditions.UID != nil && *options.Preconditions.UID != stored.GetUID() ||
			options.Preconditions.ResourceVersion != nil && *options.Preconditions.ResourceVersion != stored.GetResourceVersion()) {
			return apierrors.NewConflict(resource(k), k.name, fmt.Errorf("it is another one"))
		}
		if exists && k.kind == "jobs" && options.PropagationPolicy != nil && *options.PropagationPolicy == metav1.DeletePropagationForeground {
			if !a.c.w.api.up.on {
				return apierrors.NewServiceUnavailable("the API server is away")
			}
			a.c.w.jobs.deleteInForeground(k)
			return nil
		}
		return a.c.w.api.remove(userCourier, k)
	})
}
