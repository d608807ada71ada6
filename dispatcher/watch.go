package dispatcher

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
)

// watchConfigMap calls changed with the ConfigMap of the given name, at first and whenever it changes; with nil when it is
// deleted. It watches this one object only, for which rights on this one name are enough. It returns when ctx ends.
func watchConfigMap(ctx context.Context, core rest.Interface, name types.NamespacedName, changed func(*corev1.ConfigMap)) {
	one := fields.OneTermEqualSelector("metadata.name", name.Name)
	_, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: toolscache.NewListWatchFromClient(core, "configmaps", name.Namespace, one),
		ObjectType:    &corev1.ConfigMap{},
		Handler: toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { changed(object.(*corev1.ConfigMap)) },
			UpdateFunc: func(_, object any) { changed(object.(*corev1.ConfigMap)) },
			DeleteFunc: func(any) { changed(nil) },
		},
	})
	informer.RunWithContext(ctx)
}

// sourceWatch watches a changing set of ConfigMaps.
type sourceWatch struct {
	ctx     context.Context //nolint:containedctx // the life of the watches, not of a call
	core    rest.Interface
	changed func()

	mu      sync.Mutex
	running map[types.NamespacedName]context.CancelFunc
}

// set watches the ConfigMaps of these refs and no others.
func (w *sourceWatch) set(refs []Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wanted := map[types.NamespacedName]bool{}
	for _, ref := range refs {
		wanted[types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}] = true
	}
	for name, stop := range w.running {
		if !wanted[name] {
			stop()
			delete(w.running, name)
		}
	}
	for name := range wanted {
		if _, ok := w.running[name]; ok {
			continue
		}
		ctx, stop := context.WithCancel(w.ctx)
		w.running[name] = stop
		go watchConfigMap(ctx, w.core, name, func(*corev1.ConfigMap) { w.changed() })
	}
}
