package services

import (
	"bufio"
	"net"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
)

// backend serves its name and returns its port.
func backend(t *testing.T, name string) int32 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(name + "\n"))
			_ = conn.Close()
		}
	}()
	return int32(listener.Addr().(*net.TCPAddr).Port)
}

func pod(name string, port int32) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{{Name: "webhook", ContainerPort: port}}}}},
		Status:     corev1.PodStatus{PodIP: "127.0.0.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

// answer is what the Service says, or empty when nobody listens.
func answer(address string) string {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return ""
	}
	defer conn.Close()
	line, _ := bufio.NewReader(conn).ReadString('\n')
	return line
}

func TestAServiceLeadsToReadyPodsAlone(t *testing.T) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: corev1.ServiceSpec{
		ClusterIP: "127.0.0.1", Selector: map[string]string{"app": "web"},
		Ports: []corev1.ServicePort{{Port: freePort(t), TargetPort: intstr.FromString("webhook")}},
	}}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(service.Spec.Ports[0].Port)))
	one, two := pod("one", backend(t, "one")), pod("two", backend(t, "two"))
	two.Status.Conditions[0].Status = corev1.ConditionFalse
	client := fake.NewClientset(service, one, two)
	go func() { _ = Run(t.Context(), client) }()
	eventually(t, func() bool { return answer(address) == "one\n" })

	two.Status.Conditions[0].Status = corev1.ConditionTrue
	now := metav1.Now()
	one.DeletionTimestamp, one.Finalizers = &now, []string{"test/hold"}
	pods := client.CoreV1().Pods("ns")
	if _, err := pods.Update(t.Context(), two, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Update(t.Context(), one, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		for range 3 {
			if answer(address) != "two\n" {
				return false
			}
		}
		return true
	})

	if err := pods.Delete(t.Context(), "two", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return answer(address) == "" })
}

func freePort(t *testing.T) int32 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return int32(listener.Addr().(*net.TCPAddr).Port)
}

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(wait.ForeverTestTimeout); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it never happened")
		}
	}
}
