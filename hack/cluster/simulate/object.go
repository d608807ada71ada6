package simulate

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelet-ca-courier/hack/cluster/layout"
)

// runtimes are the container runtimes that mount volumes in the two styles.
var runtimes = map[string]string{"bind": "containerd://1.7.20", "sandbox": "containerd://1.6.36", "": "containerd://2.1.4"}

// object is the Node as its kubelet would report it.
func object(n layout.Node) *corev1.Node {
	now := metav1.NewTime(time.Now())
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	o := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{
			corev1.LabelOSStable: n.OS, corev1.LabelArchStable: "amd64", corev1.LabelHostname: n.Name,
		}},
		Status: corev1.NodeStatus{
			Capacity: resources, Allocatable: resources,
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: n.Address}, {Type: corev1.NodeHostName, Address: n.Name},
			},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(n.Port)}},
			NodeInfo: corev1.NodeSystemInfo{
				OperatingSystem: n.OS, Architecture: "amd64", KubeletVersion: n.KubeletVersion,
				ContainerRuntimeVersion: runtimes[n.MountStyle], BootID: n.BootID, MachineID: n.Name, SystemUUID: n.Name,
				KernelVersion: "6.1.0", OSImage: "Linux (simulated)",
			},
			Conditions: []corev1.NodeCondition{
				condition(corev1.NodeReady, !n.NotReady, now),
				condition(corev1.NodeMemoryPressure, false, now),
				condition(corev1.NodeDiskPressure, false, now),
				condition(corev1.NodePIDPressure, false, now),
			},
		},
	}
	if n.OS == "windows" {
		o.Labels[corev1.LabelWindowsBuild] = "10.0.20348"
		o.Spec.Taints = []corev1.Taint{{Key: "os", Value: "Windows", Effect: corev1.TaintEffectNoSchedule}}
		o.Status.NodeInfo.KernelVersion, o.Status.NodeInfo.OSImage = "10.0.20348.2700", "Windows Server 2022 Datacenter (simulated)"
	}
	return o
}

func condition(kind corev1.NodeConditionType, is bool, now metav1.Time) corev1.NodeCondition {
	status := corev1.ConditionFalse
	if is {
		status = corev1.ConditionTrue
	}
	return corev1.NodeCondition{Type: kind, Status: status, Reason: "Simulated", LastHeartbeatTime: now, LastTransitionTime: now}
}
