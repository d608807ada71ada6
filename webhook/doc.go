// Package webhook is the gate at admission: it judges every change of the guarded ConfigMap with [bundle.Review] before
// the API server persists it.
//
// It reads nothing from the cluster and changes nothing: the old object, the new one and the clock are all it looks at, so
// a dry run gets the same answer as the real thing, and any number of replicas agree. A refusal is a Status with one cause
// for each fault, which kubectl prints line by line.
//
// The rest of the package is about being safe in the way of a cluster: [NewServer] serves with a certificate that is
// reloaded when it changes, and [SetupWithManager] adds a readiness check on what is really served.
package webhook
