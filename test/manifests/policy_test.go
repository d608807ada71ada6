package manifests_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/dispatcher"
)

// editor is someone with the edit role in the Jobs' namespace, and in this test with all rights there are: policies bind
// administrators as well.
const editor = "alice"

// findDeployment returns the manager's Deployment.
func findDeployment(t *testing.T, objects []*unstructured.Unstructured) *appsv1.Deployment {
	t.Helper()
	return find[appsv1.Deployment](t, objects, "Deployment", "courier")
}

// realJob builds the Job that the dispatcher would create under the settings that ship.
func realJob(t *testing.T, objects []*unstructured.Unstructured, change func(*dispatcher.Config)) *batchv1.Job {
	t.Helper()
	config, err := dispatcher.ParseConfig(find[corev1.ConfigMap](t, objects, "ConfigMap", "courier-config").Data)
	if err != nil {
		t.Fatalf("the settings that ship: %v", err)
	}
	change(&config)
	snapshot := dispatcher.Snapshot{Name: "kubelet-ca-0123456789abcdef", Hash: strings.Repeat("0123456789abcdef", 4)}
	target, err := dispatcher.NewTarget(snapshot, config, dispatcher.JobsNamespace)
	if err != nil {
		t.Fatal(err)
	}
	return target.Job(dispatcher.Node{Name: "win-1", UID: "1"}, dispatcher.Attempt{Number: 1, Cause: dispatcher.CauseMissing})
}

// TestOnlyTheLandingsJobsGetIn walks through what an editor of the namespace, or whoever stole the manager's account, might
// try with Jobs.
func TestOnlyTheLandingsJobsGetIn(t *testing.T) {
	s := startWith(t, "openshift")
	manager := s.as(t, managerAccount, "")
	s.awaitPolicies(t)

	container := func(change func(*corev1.Container)) func(*batchv1.Job) {
		return func(j *batchv1.Job) { change(&j.Spec.Template.Spec.Containers[0]) }
	}
	pod := func(change func(*corev1.PodSpec)) func(*batchv1.Job) {
		return func(j *batchv1.Job) { change(&j.Spec.Template.Spec) }
	}
	for name, test := range map[string]struct {
		change func(*batchv1.Job)
		denied string // empty when it is let in
	}{
		"the dispatcher's own Job": {func(*batchv1.Job) {}, ""},
		"with tolerations and resources of an admin's": {pod(func(p *corev1.PodSpec) {
			p.Tolerations, p.ImagePullSecrets = nil, []corev1.LocalObjectReference{{Name: "registry"}}
		}), ""},
		"in observe mode":     {container(func(c *corev1.Container) { c.Args = append(c.Args, "--dry-run") }), ""},
		"with another image":  {container(func(c *corev1.Container) { c.Image = "evil/image" }), "runs the image"},
		"with a shell":        {container(func(c *corev1.Container) { c.Command = []string{"cmd.exe"} }), "runs courier-node.exe"},
		"with no command":     {container(func(c *corev1.Container) { c.Command = nil }), "runs courier-node.exe"},
		"with an environment": {container(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "PATH", Value: `C:\x`}} }), "no environment"},
		"with a probe that runs a program": {container(func(c *corev1.Container) {
			c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"cmd.exe"}}}}
		}), "no environment, probe or hook"},
		"with a working directory": {container(func(c *corev1.Container) { c.WorkingDir = `C:\x` }), "no environment"},
		"with an argument that cmd.exe acts on": {container(func(c *corev1.Container) {
			c.Args = append(c.Args, "--confirm=x&calc.exe")
		}), "holds nothing that cmd.exe would act on"},
		"with an unknown flag":        {container(func(c *corev1.Container) { c.Args = append(c.Args, "--run=x") }), "one that courier gives"},
		"with a flag in short form":   {container(func(c *corev1.Container) { c.Args = append(c.Args, "-destination") }), "one that courier gives"},
		"to another destination":      {container(func(c *corev1.Container) { c.Args[5] = `C:\Windows\System32\drivers\etc\hosts` }), "writes to the destination"},
		"to a second destination":     {container(func(c *corev1.Container) { c.Args = append(c.Args, `--destination=C:\x`) }), "one --destination"},
		"from a second source":        {container(func(c *corev1.Container) { c.Args = append(c.Args, `--source=C:\x`) }), "one --source"},
		"from a source given twice":   {container(func(c *corev1.Container) { c.Args = append(c.Args, c.Args[:2]...) }), "one --source"},
		"from another source":         {container(func(c *corev1.Container) { c.Args[1] = `C:\x` }), "reads the snapshot that it mounts"},
		"from no source":              {container(func(c *corev1.Container) { c.Args = c.Args[2:] }), "one --source"},
		"with a second hash":          {container(func(c *corev1.Container) { c.Args = append(c.Args, "--sha256", "00") }), "one --sha256"},
		"with no hash":                {container(func(c *corev1.Container) { c.Args = slices.Delete(c.Args, 2, 4) }), "one --sha256"},
		"to no destination":           {container(func(c *corev1.Container) { c.Args = c.Args[:4] }), "one --destination"},
		"with a second container":     {pod(func(p *corev1.PodSpec) { p.Containers = append(p.Containers, corev1.Container{Name: "b", Image: "b"}) }), "one container"},
		"with an init container":      {pod(func(p *corev1.PodSpec) { p.InitContainers = []corev1.Container{{Name: "b", Image: "b"}} }), "one container"},
		"with another account":        {pod(func(p *corev1.PodSpec) { p.ServiceAccountName = "default" }), "runs as courier-node"},
		"with a token":                {pod(func(p *corev1.PodSpec) { p.AutomountServiceAccountToken = ptr.To(true) }), "without a token"},
		"with a volume from the host": {pod(func(p *corev1.PodSpec) { p.Volumes = append(p.Volumes, hostVolume()) }), "one snapshot and nothing else"},
		"with a second snapshot": {pod(func(p *corev1.PodSpec) {
			second := *p.Volumes[0].DeepCopy()
			second.Name = "second"
			p.Volumes = append(p.Volumes, second)
		}), "one snapshot and nothing else"},
		"with no volume": {pod(func(p *corev1.PodSpec) { p.Volumes, p.Containers[0].VolumeMounts = nil, nil }), "one snapshot and nothing else"},
		"with another ConfigMap": {pod(func(p *corev1.PodSpec) {
			p.Volumes[0].ConfigMap.Name = "mine"
		}), "one snapshot and nothing else"},
	} {
		t.Run(name, func(t *testing.T) {
			job := realJob(t, s.objects, func(*dispatcher.Config) {})
			test.change(job)
			err := manager.Create(t.Context(), job, client.DryRunAll)
			if test.denied == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
			} else if err := mustDeny(err, test.denied); err != nil {
				t.Error(err)
			}
		})
	}
}

// hostVolume is the node's whole disk.
func hostVolume() corev1.Volume {
	return corev1.Volume{Name: "disk", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: `C:\`}}}
}

// TestNobodyElseGetsInByAnotherDoor tries the ways to a container in the Jobs' namespace that do not lead through a Job.
func TestNobodyElseGetsInByAnotherDoor(t *testing.T) {
	s := startWith(t, "openshift")
	someone := s.as(t, editor, "system:masters")
	controller := s.as(t, jobController, "")
	s.awaitPolicies(t)

	job := realJob(t, s.objects, func(*dispatcher.Config) {})
	if err := s.as(t, managerAccount, "").Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	pod := podOf(job)
	if err := controller.Create(t.Context(), pod); err != nil {
		t.Fatalf("the Job controller's pod: %v", err)
	}
	snapshot := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: dispatcher.JobsNamespace, Name: "kubelet-ca-1"}}

	for name, test := range map[string]struct {
		try    func(t *testing.T) error
		denied string
	}{
		"a Job of one's own": {func(t *testing.T) error {
			other := realJob(t, s.objects, func(*dispatcher.Config) {})
			other.Name = "mine"
			return someone.Create(t.Context(), other, client.DryRunAll)
		}, "only the courier account creates Jobs"},
		"another image for a Job": {func(t *testing.T) error {
			changed := job.DeepCopy()
			changed.ResourceVersion = "" // whatever was written since
			changed.Spec.Template.Spec.Containers[0].Image = "evil/image"
			return someone.Update(t.Context(), changed, client.DryRunAll)
		}, "immutable"},
		"a pod of one's own": {func(t *testing.T) error {
			other := podOf(job)
			other.Name = "mine"
			return someone.Create(t.Context(), other, client.DryRunAll)
		}, "only the Job controller creates pods"},
		"a pod of a ReplicaSet": {func(t *testing.T) error {
			other := podOf(job)
			other.Name = "mine"
			return s.as(t, "system:serviceaccount:kube-system:replicaset-controller", "").Create(t.Context(), other, client.DryRunAll)
		}, "only the Job controller creates pods"},
		"a pod with a sidecar": {func(t *testing.T) error {
			other := podOf(job)
			other.Name, other.Spec.InitContainers = "mine", []corev1.Container{{Name: "b", Image: "b"}}
			return controller.Create(t.Context(), other, client.DryRunAll)
		}, "only container"},
		"another image for a pod": {func(t *testing.T) error {
			changed := pod.DeepCopy()
			changed.Spec.Containers[0].Image = "evil/image"
			return someone.Update(t.Context(), changed, client.DryRunAll)
		}, "never change"},
		"an ephemeral container": {func(t *testing.T) error {
			changed := pod.DeepCopy()
			changed.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
				EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "evil/image"}}}
			return someone.SubResource("ephemeralcontainers").Update(t.Context(), changed, client.DryRunAll)
		}, "nobody enters"},
		"a shell in a pod":     {func(t *testing.T) error { return s.connect(t, pod, "exec") }, "nobody enters"},
		"an attachment to one": {func(t *testing.T) error { return s.connect(t, pod, "attach") }, "nobody enters"},
		"a snapshot of one's own": {func(t *testing.T) error {
			return someone.Create(t.Context(), snapshot.DeepCopy(), client.DryRunAll)
		}, "only the courier account writes snapshots"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := mustDeny(test.try(t), test.denied); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("other ConfigMaps are nobody's business", func(t *testing.T) {
		other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: dispatcher.JobsNamespace, Name: "kube-root-ca.crt"}}
		if err := someone.Create(t.Context(), other, client.DryRunAll); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Error(err)
		}
	})
	t.Run("the cluster's controllers may end a Job of another image", func(t *testing.T) {
		s.setImage(t, "kubelet-ca-courier/node:next")
		changed := &batchv1.Job{}
		if err := someone.Get(t.Context(), client.ObjectKeyFromObject(job), changed); err != nil {
			t.Fatal(err)
		}
		changed.Finalizers = append(changed.Finalizers, "example.com/x")
		if err := someone.Update(t.Context(), changed, client.DryRunAll); err != nil {
			t.Error(err)
		}
	})
}

// podOf builds the pod that the Job controller would create.
func podOf(job *batchv1.Job) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: job.Namespace,
			Name:      job.Name + "-0",
			Labels:    job.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: cmp.Or(job.UID, "1"), Controller: ptr.To(true)},
			},
		},
		Spec: *job.Spec.Template.Spec.DeepCopy(),
	}
}

// connect opens a stream to a pod as an administrator.
func (s *apiServer) connect(t *testing.T, pod *corev1.Pod, how string) error {
	t.Helper()
	clientset, err := kubernetes.NewForConfig(rest.CopyConfig(s.config))
	if err != nil {
		t.Fatal(err)
	}
	return clientset.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		SubResource(how).Param("command", "cmd.exe").Param("stdout", "true").Do(t.Context()).Error()
}

// setImage changes the landing's image in the settings.
func (s *apiServer) setImage(t *testing.T, image string) {
	t.Helper()
	config := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: dispatcher.ManagerNamespace, Name: dispatcher.ConfigName}
	if err := s.admin.Get(t.Context(), key, config); err != nil {
		t.Fatal(err)
	}
	old := readSettings(t, s.objects).Image
	config.Data["config.yaml"] = strings.Replace(config.Data["config.yaml"], old, image, 1)
	if err := s.admin.Update(t.Context(), config); err != nil {
		t.Fatal(err)
	}
}

// awaitPolicies waits until each of the policies refuses what it is there to refuse.
func (s *apiServer) awaitPolicies(t *testing.T) {
	t.Helper()
	someone := s.as(t, editor, "system:masters")
	probes := map[string]client.Object{
		"only the courier account creates Jobs":     realJob(t, s.objects, func(*dispatcher.Config) {}),
		"only the Job controller creates pods":      podOf(realJob(t, s.objects, func(*dispatcher.Config) {})),
		"only the courier account writes snapshots": &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: dispatcher.JobsNamespace, Name: "kubelet-ca-0"}},
	}
	for because, object := range probes {
		object.SetUID("")
		eventually(t, func() error {
			return mustDeny(someone.Create(t.Context(), object.DeepCopyObject().(client.Object), client.DryRunAll), because)
		})
	}
	eventually(t, func() error {
		return mustDeny(s.connect(t, podOf(realJob(t, s.objects, func(*dispatcher.Config) {})), "exec"), "nobody enters")
	})
	eventually(t, func() error {
		return s.as(t, managerAccount, "").Create(t.Context(), realJob(t, s.objects, func(*dispatcher.Config) {}), client.DryRunAll)
	})
}
