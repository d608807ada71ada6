package simulate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"kubelet-ca-courier/hack/cluster/layout"
)

func TestWindowsPathsLeadToTheNodesDisk(t *testing.T) {
	w := windows{layout.Cluster{Dir: "/cluster"}, layout.Node{Name: "win"}}
	for word, want := range map[string]string{
		`C:\k\kubelet-ca.crt`:       "/cluster/nodes/win/c/k/kubelet-ca.crt",
		`c:/k/kubelet-ca.crt`:       "/cluster/nodes/win/c/k/kubelet-ca.crt",
		`--destination=C:\k\ca.crt`: "--destination=/cluster/nodes/win/c/k/ca.crt",
		`C:\`:                       "/cluster/nodes/win/c",
		`C:\..\..\..\etc\passwd`:    "/cluster/nodes/win/c/etc/passwd",
		"/dev/termination-log":      "/cluster/nodes/win/c/dev/termination-log",
		"--confirm-timeout":         "--confirm-timeout",
		"sha256:C0FFEE":             "sha256:C0FFEE",
	} {
		if got := w.host(word); got != want {
			t.Errorf("%s becomes %s, want %s", word, got, want)
		}
	}
}

func TestMountPathsLeadToTheVolumes(t *testing.T) {
	mounts := map[string]string{"/etc/courier": "/v/a", "/etc/courier/tls": "/v/tls"}
	for word, want := range map[string]string{
		"/etc/courier/tls":             "/v/tls",
		"--cert-dir=/etc/courier/tls":  "--cert-dir=/v/tls",
		"/etc/courier/tls/tls.crt":     "/v/tls/tls.crt",
		"/etc/courier/config.yaml":     "/v/a/config.yaml",
		"/etc/courier-two/config.yaml": "/etc/courier-two/config.yaml",
		"/other/etc/courier":           "/other/etc/courier",
		"a:/etc/courier":               "a:/v/a",
	} {
		if got := rewriteMounts(word, mounts); got != want {
			t.Errorf("%s becomes %s, want %s", word, got, want)
		}
	}
}

// job is the pod of a delivery.
func job() *corev1.Pod {
	yes := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "uid"},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{WindowsOptions: &corev1.WindowsSecurityContextOptions{HostProcess: &yes}},
			Containers: []corev1.Container{{
				Name: "c", Image: "kubelet-ca-courier/node:dev", TerminationMessagePath: "/dev/termination-log",
				Command:      []string{`%CONTAINER_SANDBOX_MOUNT_POINT%\courier-node.exe`, "--source", `C:\kubelet-ca-courier\ca-bundle.crt`, "--confirm", "127.0.0.1:10250"},
				VolumeMounts: []corev1.VolumeMount{{Name: "bundle", MountPath: `C:\kubelet-ca-courier`}},
			}},
		},
	}
}

func TestVolumesAppearWhereTheRuntimeOfTheNodeMountsThem(t *testing.T) {
	for name, test := range map[string]struct{ style, program, volume, variable string }{
		"bound, under Wine":                {"bind", "wine", "kubelet-ca-courier", `C:\hpc`},
		"bound, for a native build":        {"bind", "native", "kubelet-ca-courier", "/c/hpc"},
		"in the sandbox, under Wine":       {"sandbox", "wine", "C/id/kubelet-ca-courier", `C:\C\id`},
		"in the sandbox, for a native one": {"sandbox", "native", "C/id/$DISK/kubelet-ca-courier", "/c/C/id"},
	} {
		t.Run(name, func(t *testing.T) {
			w := windows{layout.Cluster{Dir: t.TempDir()}, layout.Node{Name: "win", MountStyle: test.style, Program: test.program, Local: "127.1.2.3", LocalPort: 10250}}
			v := &volumes{dir: t.TempDir()}
			if err := os.MkdirAll(v.path("bundle"), 0o700); err != nil {
				t.Fatal(err)
			}
			pod := job()
			env := map[string]string{}
			l, undo, err := w.prepare(pod, &pod.Spec.Containers[0], "id", v, env)
			if err != nil {
				t.Fatal(err)
			}
			link := filepath.Join(w.disk(), strings.ReplaceAll(test.volume, "$DISK", w.disk()))
			if target, err := os.Readlink(link); err != nil || target != v.path("bundle") {
				t.Errorf("%s leads to %q (%v)", link, target, err)
			}
			if !strings.HasSuffix(env[mountPoint], test.variable) {
				t.Errorf("%s=%s, want %s", mountPoint, env[mountPoint], test.variable)
			}
			if line := strings.Join(l.args, " "); !strings.HasSuffix(line, "--confirm 127.1.2.3:10250") || strings.Contains(line, "%") {
				t.Errorf("command line: %s", line)
			}
			undo()
			if _, err := os.Lstat(link); err == nil {
				t.Error("the mount outlives the container")
			}
		})
	}
}

func TestAContainerRunsTheProgramOfItsTag(t *testing.T) {
	c := layout.Cluster{Dir: t.TempDir()}
	for _, reference := range []string{"kubelet-ca-courier/node:next", "kubelet-ca-courier/manager:next"} {
		image, _ := layout.ParseImage(reference)
		if err := os.MkdirAll(c.ImageDir(image), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(c.ImageDir(image), image.Build(false)), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	v := &volumes{dir: t.TempDir()}
	w := windows{c, layout.Node{Name: "win", MountStyle: "bind", Program: "native"}}
	l := &linux{cluster: c, node: layout.Node{Name: "linux"}}
	for tag, dir := range map[string]string{"next": "images/kubelet-ca-courier", "dev": "bin"} {
		pod := job()
		pod.Spec.Containers[0].Image = "example.com/kubelet-ca-courier/node:" + tag
		_, undo, err := w.prepare(pod, &pod.Spec.Containers[0], "id", v, map[string]string{})
		if err != nil {
			t.Fatal(err)
		}
		target, err := os.Readlink(filepath.Join(w.disk(), "C", "id", "courier-node.exe"))
		if err != nil || !strings.HasPrefix(target, c.Path(dir)) || filepath.Base(target) != "courier-node" {
			t.Errorf("the landing with the tag %s is %s (%v)", tag, target, err)
		}
		undo()
		pod.Spec.Containers[0] = corev1.Container{Image: "example.com/kubelet-ca-courier/manager:" + tag}
		started, _, err := l.prepare(pod, &pod.Spec.Containers[0], "id", v, map[string]string{})
		if err != nil {
			t.Fatal(err)
		}
		if program := started.args[0]; !strings.HasPrefix(program, c.Path(dir)) || filepath.Base(program) != "courier" {
			t.Errorf("the manager with the tag %s is %s", tag, program)
		}
	}
	if w.node.Program = "wine"; w.has("kubelet-ca-courier/node:next") || !w.has("kubelet-ca-courier/node:dev") {
		t.Error("under Wine, a tag without a program for Windows can be pulled, or one of this repository cannot")
	}
}

func TestOnlyHostProcessContainersRunOnWindows(t *testing.T) {
	w := windows{layout.Cluster{Dir: t.TempDir()}, layout.Node{Name: "win", MountStyle: "bind"}}
	pod := job()
	pod.Spec.SecurityContext = nil
	if _, _, err := w.prepare(pod, &pod.Spec.Containers[0], "id", &volumes{}, map[string]string{}); err == nil {
		t.Error("another container was let in")
	}
}

func TestVolumesFollowTheirConfigMap(t *testing.T) {
	mode := int32(0o644)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
		Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, DefaultMode: &mode}},
	}}}}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "cm"}, Data: map[string]string{"key": "old"}}
	client := fake.NewClientset()
	v := &volumes{client: client, pod: pod, dir: t.TempDir()}
	if err := v.write(t.Context()); err == nil {
		t.Error("the pod starts without its ConfigMap")
	}
	if _, err := client.CoreV1().ConfigMaps("ns").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"old", "new"} {
		cm.Data["key"] = want
		if _, err := client.CoreV1().ConfigMaps("ns").Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := v.write(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(v.path("config"), "key")); err != nil || string(got) != want {
			t.Errorf("the file holds %q (%v), want %q", got, err, want)
		}
	}
	if target, err := os.Readlink(filepath.Join(v.path("config"), "key")); err != nil || target != "..data/key" {
		t.Errorf("the file is a link to %q (%v), want ..data/key", target, err)
	}
}

func TestTheEnvironmentIsResolvedInOrder(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod"}, Status: corev1.PodStatus{PodIP: "127.9.9.9"}}
	optional := true
	c := &corev1.Container{
		Args:    []string{"--bind-address=$(POD_IP)", "$$(POD_IP)", "$(MISSING)"},
		EnvFrom: []corev1.EnvFromSource{{Prefix: "CM_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}},
		Env: []corev1.EnvVar{
			{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
			{Name: "URL", Value: "http://$(POD_IP):$(CM_port)"},
			{Name: "NONE", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "none"}, Key: "key", Optional: &optional}}},
		},
	}
	client := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "cm"}, Data: map[string]string{"port": "80"}})
	env, err := environment(t.Context(), client, pod, c)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(assignments(env), " "), "CM_port=80 POD_IP=127.9.9.9 URL=http://127.9.9.9:80"; got != want {
		t.Errorf("environment %q, want %q", got, want)
	}
	if got, want := strings.Join(commandLine(c, "program", env), " "), "program --bind-address=127.9.9.9 $(POD_IP) $(MISSING)"; got != want {
		t.Errorf("command line %q, want %q", got, want)
	}
}

func TestTheTerminationMessageIsTheFileOrTheEndOfTheLog(t *testing.T) {
	file, log := filepath.Join(t.TempDir(), "message"), filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, []byte("of the run before\nof this run\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	begin := int64(len("of the run before\n"))
	message := func(policy corev1.TerminationMessagePolicy, exitCode int32) string {
		return terminationMessage(file, log, begin, policy, exitCode)
	}
	fallback := corev1.TerminationMessageFallbackToLogsOnError
	if got := message(fallback, 1); got != "of this run\n" {
		t.Errorf("after a failure: %q", got)
	}
	if got := message(fallback, 0) + message(corev1.TerminationMessageReadFile, 1); got != "" {
		t.Errorf("after a success, or by another policy: %q", got)
	}
	if err := os.WriteFile(file, []byte("said so"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := message(fallback, 1); got != "said so" {
		t.Errorf("with a file: %q", got)
	}
}

func TestTailBeginsAtALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("one\ntwo\nthree\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for lines, want := range map[int]int64{1: 8, 2: 4, 3: 0, 9: 0} {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := seekTail(file, lines); err != nil {
			t.Fatal(err)
		}
		if at, err := file.Seek(0, 1); err != nil || at != want {
			t.Errorf("the last %d lines begin at %d (%v), want %d", lines, at, err, want)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
