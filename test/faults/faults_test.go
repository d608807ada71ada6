package faults

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelet-ca-courier/dispatcher"
	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/hack/lab/labtest"
)

func TestAProcessThatIsKilledDuringARotationLosesNothing(t *testing.T) {
	for _, process := range []string{
		"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler",
		"node-" + lab.LinuxNode, // with both replicas of courier
		"node-win-1",            // with the landing, if it runs
	} {
		t.Run(process, func(t *testing.T) {
			c := start(t)
			c.settled(t, c.rotate(t))
			whole := c.neverBroken(t)
			defer whole()
			content, goOn := c.rotateHalf(t)
			c.do(t, "kill", process)
			c.underway(t, content)
			goOn()
			c.do(t, "restart", process)
			c.settled(t, content)
		})
	}
}

func TestAnAPIServerThatHangsLosesNothing(t *testing.T) {
	c := start(t)
	c.settled(t, c.rotate(t))
	whole := c.neverBroken(t)
	defer whole()
	content, goOn := c.rotateHalf(t)
	c.do(t, "pause", "kube-apiserver") // watches and requests hang
	c.do(t, "pause", "node-win-1")
	c.underway(t, content)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := c.client.CoreV1().Nodes().Get(ctx, "win-1", metav1.GetOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a request while the API server hangs: %v, want no answer", err)
	}
	c.do(t, "resume", "kube-apiserver")
	c.do(t, "resume", "node-win-1")
	goOn()
	c.settled(t, content)
}

func TestALostLeaderIsFollowedByAnother(t *testing.T) {
	c := start(t)
	c.settled(t, c.rotate(t))
	leader := func(ctx context.Context) string {
		lease, err := c.client.CoordinationV1().Leases(lab.ManagerNamespace).Get(ctx, "courier", metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
	before := leader(t.Context())
	// Simulated pods share the machine's name, so the holder does not tell which one leads: all of them go.
	c.kubectl(t, "delete", "pod", "-l", "app.kubernetes.io/component=courier", "-n", lab.ManagerNamespace, "--grace-period=0", "--force")
	c.settled(t, c.rotate(t))
	labtest.Eventually(t, "another replica leads", func(ctx context.Context) error {
		if now := leader(ctx); now == "" || now == before {
			return errors.New("the leader is " + now)
		}
		return nil
	})
}

func TestAnotherWritersFileIsPutRightByTheNextLook(t *testing.T) {
	c := start(t)
	content := c.rotate(t)
	c.settled(t, content)
	config := c.kubectl(t, "get", "configmap", dispatcher.ConfigName, "-n", lab.ManagerNamespace, "-o", `jsonpath={.data.config\.yaml}`)
	c.configure(t, config+"\nlookAgain: 1m\n")
	t.Cleanup(func() { c.configure(t, config) })
	if err := os.WriteFile(c.File("win-2"), []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.settled(t, content)
}

// configure writes courier's settings.
func (c *cluster) configure(t *testing.T, config string) {
	t.Helper()
	object, err := c.client.CoreV1().ConfigMaps(lab.ManagerNamespace).Get(context.WithoutCancel(t.Context()), dispatcher.ConfigName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	object.Data[dispatcher.SettingsKey] = config
	if _, err := c.client.CoreV1().ConfigMaps(lab.ManagerNamespace).Update(context.WithoutCancel(t.Context()), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestAQuotaHoldsADeliveryUpAndIsTold(t *testing.T) {
	c := start(t)
	c.settled(t, c.rotate(t))
	c.kubectl(t, "create", "quota", "none", "-n", lab.JobsNamespace, "--hard=count/jobs.batch=0")
	labtest.Eventually(t, "the quota is in force", func(ctx context.Context) error {
		quota, err := c.client.CoreV1().ResourceQuotas(lab.JobsNamespace).Get(ctx, "none", metav1.GetOptions{})
		if err == nil && len(quota.Status.Hard) == 0 {
			err = errors.New("not yet")
		}
		return err
	})
	blocked := c.warnedOf(t, dispatcher.ReasonBlocked)
	content := c.rotate(t)
	blocked()
	c.underway(t, content)
	c.kubectl(t, "delete", "quota", "none", "-n", lab.JobsNamespace)
	c.settled(t, content)
}

func TestWhatOthersWriteOnItsObjectsDisturbsNothing(t *testing.T) {
	c := start(t)
	content := c.rotate(t)
	c.settled(t, content)
	c.kubectl(t, "label", "nodes", "win-1", "team=a", "--overwrite")
	c.kubectl(t, "taint", "nodes", "win-1", "team=a:NoSchedule", "--overwrite")
	c.kubectl(t, "annotate", "configmap", lab.GuardedName, "-n", lab.GuardedNamespace, "team=a", "--overwrite")
	c.kubectl(t, "annotate", "jobs", "--all", "-n", lab.JobsNamespace, "team=a", "--overwrite")
	c.settled(t, content)
	c.settled(t, c.rotate(t)) // tainted, and served all the same
	c.kubectl(t, "taint", "nodes", "win-1", "team-")
}
