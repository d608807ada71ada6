package manifests_test

import (
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
)

// request is one line of the table: VERB GROUP/RESOURCE[/SUBRESOURCE] NAMESPACE/NAME.
type request struct {
	verb, resource, object string
	allowed                bool
}

// managerRequests say what the manager's account may do on every platform, and what it may not. [sourceRequests] has what
// depends on the sources.
var managerRequests = []request{
	// its settings
	{"get", "/configmaps", "kubelet-ca-courier-system/courier-config", true},
	{"watch", "/configmaps", "kubelet-ca-courier-system/courier-config", true},
	{"update", "/configmaps", "kubelet-ca-courier-system/courier-config", false},
	{"get", "/configmaps", "kubelet-ca-courier-system/other", false},
	// its leader election
	{"create", "coordination.k8s.io/leases", "kubelet-ca-courier-system/", true},
	{"update", "coordination.k8s.io/leases", "kubelet-ca-courier-system/courier", true},
	{"update", "coordination.k8s.io/leases", "kubelet-ca-courier-system/other", false},
	{"update", "coordination.k8s.io/leases", "kube-node-lease/win-1", false},
	{"delete", "coordination.k8s.io/leases", "kubelet-ca-courier-system/courier", false},
	// Jobs and snapshots
	{"create", "batch/jobs", "kubelet-ca-courier/win-1", true},
	{"delete", "batch/jobs", "kubelet-ca-courier/win-1", true},
	{"watch", "batch/jobs", "kubelet-ca-courier/", true},
	{"update", "batch/jobs", "kubelet-ca-courier/win-1", false},
	{"patch", "batch/jobs", "kubelet-ca-courier/win-1", false},
	{"deletecollection", "batch/jobs", "kubelet-ca-courier/", false},
	{"create", "batch/jobs", "default/win-1", false},
	{"create", "batch/cronjobs", "kubelet-ca-courier/win-1", false},
	{"create", "/configmaps", "kubelet-ca-courier/kubelet-ca-0", true},
	{"delete", "/configmaps", "kubelet-ca-courier/kubelet-ca-0", true},
	{"create", "/configmaps", "kubelet-ca-courier-system/x", false},
	{"update", "/configmaps", "kubelet-ca-courier/kubelet-ca-0", true},
	{"patch", "/configmaps", "kubelet-ca-courier/kubelet-ca-0", false},
	{"list", "/pods", "kubelet-ca-courier/", true},
	{"watch", "/pods", "kubelet-ca-courier/", false},
	{"get", "/pods", "kubelet-ca-courier/x", false},
	{"create", "/pods", "kubelet-ca-courier/x", false},
	{"delete", "/pods", "kubelet-ca-courier/x", false},
	{"get", "/pods/log", "kubelet-ca-courier/x", false},
	{"create", "/pods/exec", "kubelet-ca-courier/x", false},
	{"list", "/pods", "kube-system/", false},
	// nodes
	{"list", "/nodes", "/", true},
	{"watch", "/nodes", "/", true},
	{"update", "/nodes", "/win-1", false},
	{"patch", "/nodes", "/win-1", false},
	{"patch", "/nodes/status", "/win-1", false},
	{"get", "/nodes/proxy", "/win-1", false},
	{"create", "/nodes/proxy", "/win-1", false},
	{"update", "/nodes/finalizers", "/win-1", false},
	// events
	{"create", "events.k8s.io/events", "default/", true},
	{"create", "events.k8s.io/events", "kubelet-ca-courier-system/", true},
	{"create", "events.k8s.io/events", "kubelet-ca-courier/", false},
	{"create", "/events", "kubelet-ca-courier-system/", true}, // leader election's
	{"create", "/events", "default/", false},
	{"patch", "/events", "kubelet-ca-courier-system/x", false},
	{"patch", "events.k8s.io/events", "kubelet-ca-courier-system/x", false},
	{"patch", "events.k8s.io/events", "default/x", false},
	{"delete", "events.k8s.io/events", "default/x", false},
	// everything that would make it more than it is
	{"get", "/secrets", "kubelet-ca-courier-system/courier-webhook-tls", false},
	{"list", "/secrets", "kubelet-ca-courier-system/", false},
	{"get", "/secrets", "kube-system/x", false},
	{"create", "/serviceaccounts/token", "kubelet-ca-courier-system/courier", false},
	{"create", "/serviceaccounts/token", "kubelet-ca-courier/courier-node", false},
	{"impersonate", "/users", "/system:admin", false},
	{"update", "apps/deployments", "kubelet-ca-courier-system/courier", false},
	{"create", "rbac.authorization.k8s.io/clusterrolebindings", "/x", false},
	{"update", "admissionregistration.k8s.io/validatingwebhookconfigurations", "/kubelet-ca-courier", false},
	{"delete", "admissionregistration.k8s.io/validatingadmissionpolicies", "/kubelet-ca-courier-jobs", false},
	{"approve", "certificates.k8s.io/signers", "/kubernetes.io/kube-apiserver-client-kubelet", false},
}

// nodeRequests say that the landing's account may do nothing.
var nodeRequests = []request{
	{"get", "/configmaps", "kubelet-ca-courier/kubelet-ca-0", false},
	{"list", "/pods", "kubelet-ca-courier/", false},
	{"get", "batch/jobs", "kubelet-ca-courier/win-1", false},
	{"list", "/nodes", "/", false},
	{"get", "/secrets", "kubelet-ca-courier/x", false},
	{"create", "events.k8s.io/events", "kubelet-ca-courier/", false},
	{"create", "batch/jobs", "kubelet-ca-courier/win-1", false},
}

// sourceRequests say what the manager's account may do with the sources of one overlay and with those of the others.
func sourceRequests(own settings, others []settings) []request {
	var table []request
	mine, told := map[source]bool{}, own.Guarded.Namespace
	for _, src := range own.sources() {
		namespace, object := src.Namespace+"/", src.Namespace+"/"+src.Name
		mine[source{Namespace: src.Namespace, Name: src.Name}] = true
		for _, verb := range []string{"get", "list", "watch"} {
			table = append(table, request{verb, "/configmaps", object, true},
				request{verb, "/configmaps", namespace + "other", false}, request{verb, "/configmaps", namespace, false})
		}
		for _, verb := range []string{"create", "update", "patch", "delete"} {
			table = append(table, request{verb, "/configmaps", object, false})
		}
		table = append(table, request{"create", "events.k8s.io/events", namespace, src.Namespace == told},
			request{"create", "/events", namespace, false}, request{"patch", "events.k8s.io/events", namespace + "x", false})
	}
	for _, other := range others {
		for _, src := range other.sources() {
			if mine[source{Namespace: src.Namespace, Name: src.Name}] {
				continue
			}
			table = append(table, request{"get", "/configmaps", src.Namespace + "/" + src.Name, false},
				request{"create", "events.k8s.io/events", src.Namespace + "/", src.Namespace == told})
		}
	}
	return table
}

// TestAccountsHaveTheRightsTheyNeedAndNoMore asks the API server's own authorizer, line by line, for every overlay.
func TestAccountsHaveTheRightsTheyNeedAndNoMore(t *testing.T) {
	var all []settings
	for _, name := range overlays(t) {
		all = append(all, readSettings(t, overlay(t, name)))
	}
	for _, name := range overlays(t) {
		t.Run(name, func(t *testing.T) {
			s := startWith(t, name)
			ofManager := slices.Concat(managerRequests, sourceRequests(readSettings(t, s.objects), all))
			for account, table := range map[string][]request{managerAccount: ofManager, nodeAccount: nodeRequests} {
				for _, r := range table {
					t.Run(strings.Join([]string{account, r.verb, r.resource, r.object}, " "), func(t *testing.T) {
						review := r.review(account)
						if err := s.admin.Create(t.Context(), review); err != nil {
							t.Fatal(err)
						}
						if review.Status.Allowed != r.allowed {
							t.Errorf("allowed is %t, want %t (%s)", review.Status.Allowed, r.allowed, review.Status.Reason)
						}
					})
				}
			}
		})
	}
}

// review puts the line as a question to the API server.
func (r request) review(account string) *authorizationv1.SubjectAccessReview {
	group, resource, _ := strings.Cut(r.resource, "/")
	resource, subresource, _ := strings.Cut(resource, "/")
	namespace, name, _ := strings.Cut(r.object, "/")
	return &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:   account,
		Groups: groupsOf(account, ""),
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: r.verb, Group: group, Resource: resource, Subresource: subresource, Namespace: namespace, Name: name,
		},
	}}
}
