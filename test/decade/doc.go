// Package decade lives through ten years of a cluster at a time, in simulated time, with the real gate, dispatcher and
// landing in it.
//
// What is real: the webhook's handler as it is registered with the manager, the dispatcher's reconcilers, the landing, the
// kubelet's own loader of its client-CA file (k8s.io/apiserver dynamiccertificates) and its own x509 authenticator. The
// rights of the courier account are those of manifests/base/rbac.yaml.
//
// What is a model: the API server's storage with watches that lag, the Job controller and garbage collector, the kubelet
// around its authenticator, the node's disk, and above all the operator that owns the guarded ConfigMap, from
// github.com/openshift/library-go pkg/operator/certrotation (signer.go, cabundle.go, target.go):
//
//   - a signer lives 365 days and is replaced after 292, or after 30 in some releases, or when an administrator clears
//     the Secret's annotation, or when it has expired;
//   - the bundle is parsed, the current signer put in front, what has expired dropped, the rest de-duplicated and sorted;
//     a bundle that does not parse stops the operator;
//   - the API server's client certificate lives 30 days. It is signed anew after 15 if the current signer is 36 hours old,
//     after 24 in any case, when it has expired, and at once when its issuer has left the bundle.
//
// A history is a list of things that happen to the cluster, made from a seed. A run is a function of the history and the
// seed alone, so a history that breaks a promise can be shortened by leaving things out, and the shortest is printed.
//
//	go test ./test/decade                                     # the fixed set
//	go test ./test/decade -run Decade -seeds 134 -years 10    # 1,000 cluster-years
//	go test ./test/decade -run Decade -first 17 -seeds 1 -v   # one seed
package decade
