package webhook

import "strings"

// writer is a kind of user, as a metric label: few values, and none that a user could add to.
type writer string

// Kinds of writers.
const (
	// writerOperator rotates the signer in ordinary times (OpenShift).
	writerOperator writer = "operator"
	// writerRecovery writes during disaster recovery, before pods or the service network work (OpenShift).
	writerRecovery writer = "recovery"
	// writerAPIServer is kube-apiserver itself, through its loopback client.
	writerAPIServer writer = "apiserver"
	// writerNamespaceController empties a namespace that is being deleted.
	writerNamespaceController writer = "namespace-controller"
	// writerServiceAccount is any other service account.
	writerServiceAccount writer = "service-account"
	// writerOther is anyone else: admins, for the most part.
	writerOther writer = "other"
)

// writerOf returns the kind of the user. The names are those of the clusters' own components: OpenShift's
// cluster-kube-apiserver-operator, k8s.io/apiserver pkg/authentication/user (system:apiserver) and the controller manager's
// accounts.
func writerOf(username string) writer {
	switch username {
	case "system:serviceaccount:openshift-kube-apiserver-operator:kube-apiserver-operator":
		return writerOperator
	case "system:serviceaccount:openshift-kube-apiserver:localhost-recovery-client":
		return writerRecovery
	case "system:apiserver":
		return writerAPIServer
	case "system:serviceaccount:kube-system:namespace-controller":
		return writerNamespaceController
	}
	if strings.HasPrefix(username, "system:serviceaccount:") {
		return writerServiceAccount
	}
	return writerOther
}
