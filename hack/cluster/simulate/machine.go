package simulate

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubelet-ca-courier/hack/cluster/layout"
)

// launch is a container turned into a process of this machine.
type launch struct {
	args []string
	env  []string
	dir  string
	// message is where the container may leave its termination message.
	message string
	// prefix is the variable that names the Wine prefix; empty for programs that need none. Wine starts a prefix with the first
	// program in it: where that program is killed meanwhile, every later one would wait for the start without end.
	prefix string
}

// machine is what differs between a simulated Windows node and a simulated Linux node.
type machine interface {
	// has tells whether an image can be pulled.
	has(image string) bool
	// prepare lays out the container's file system and translates its command line and environment. The returned
	// function undoes what must not outlive the container.
	prepare(pod *corev1.Pod, c *corev1.Container, id string, v *volumes, env map[string]string) (launch, func(), error)
	// podIP is the address of a pod, unless it uses the host's network.
	podIP() string
}

// windows runs HostProcess containers: programs that see the node's own disk.
type windows struct {
	cluster layout.Cluster
	node    layout.Node
}

// mountPoint is the variable through which a HostProcess container finds its files.
const mountPoint = "CONTAINER_SANDBOX_MOUNT_POINT"

func (w windows) disk() string { return w.cluster.NodeDir(w.node.Name, "c") }

func (w windows) podIP() string { return w.node.Address } // HostProcess containers use the host's network

func (w windows) has(image string) bool {
	i, known := layout.ParseImage(image)
	if !known || !strings.HasSuffix(i.Program, ".exe") {
		return false
	}
	_, there := w.cluster.ImageProgram(i, w.wine())
	return there
}

// prepare gives the container what containerd gives a HostProcess container. From 1.7 on ("bind"), its image appears at
// C:\hpc and its volumes at their mount paths; before ("sandbox"), both lie below a directory of the container's own.
// Bound paths are links here, which every process of the node can see; on Windows the container alone does.
func (w windows) prepare(pod *corev1.Pod, c *corev1.Container, id string, v *volumes, env map[string]string) (launch, func(), error) {
	if !hostProcess(pod, c) {
		return launch{}, nil, fmt.Errorf("only HostProcess containers are simulated on Windows nodes")
	}
	image, _ := layout.ParseImage(c.Image)
	program, _ := w.cluster.ImageProgram(image, w.wine())
	root := filepath.Join(w.disk(), "C", id)
	var links []string
	undo := func() {
		for _, link := range links {
			_ = os.Remove(link) // a link of a later container may be there by now, which is as good as none
		}
		_ = os.RemoveAll(root)
	}
	link := func(from, to string) error {
		links = append(links, to)
		return replaceLink(from, to)
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return launch{}, nil, err
	}
	err := link(program, filepath.Join(root, image.Program))
	env[mountPoint] = `C:\C\` + id
	if w.node.MountStyle == "bind" {
		env[mountPoint] = `C:\hpc`
		if err == nil {
			err = link(root, filepath.Join(w.disk(), "hpc"))
		}
	}
	for _, m := range c.VolumeMounts {
		if err != nil {
			break
		}
		target := w.host(m.MountPath)
		if w.node.MountStyle == "sandbox" {
			target = filepath.Join(root, w.withoutDrive(m.MountPath))
		}
		err = link(filepath.Join(v.path(m.Name), m.SubPath), target)
	}
	if err != nil {
		undo()
		return launch{}, nil, err
	}
	args := commandLine(c, `%`+mountPoint+`%\`+image.Program, env)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], `%`+mountPoint+`%`, env[mountPoint])
	}
	return w.translate(args, env, c), undo, nil
}

// withoutDrive is a path as a program appends it to the container's root. A native build was given a path of this
// machine, and appends that.
func (w windows) withoutDrive(path string) string {
	if w.node.Program == "native" {
		return w.host(path)
	}
	return drive.ReplaceAllString(slashed(path), "")
}

// wine tells whether the node runs programs that were built for Windows.
func (w windows) wine() bool { return w.node.Program == "wine" }

// translate is the one place where Windows paths become paths of this machine. Under Wine only the node's own address
// does: the node's C: is the prefix's. A native build is given the paths of the node's directory instead.
func (w windows) translate(args []string, env map[string]string, c *corev1.Container) launch {
	self := fmt.Sprintf("%s:%d", w.node.Local, w.node.LocalPort)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "127.0.0.1:10250", self)
	}
	l := launch{dir: w.disk(), message: w.host(c.TerminationMessagePath)}
	if w.wine() {
		env["WINEPREFIX"], env["WINEDEBUG"] = w.cluster.NodeDir(w.node.Name, "wine"), "-all"
		l.prefix = "WINEPREFIX=" + env["WINEPREFIX"]
		l.args, l.env = append([]string{"wine"}, args...), append(assignments(env), "PATH="+os.Getenv("PATH"))
		return l
	}
	for i := range args {
		args[i] = w.host(args[i])
	}
	for name := range env {
		env[name] = w.host(env[name])
	}
	l.args, l.env = args, assignments(env)
	return l
}

// drive is where a path on C: begins within a word.
var drive = regexp.MustCompile(`\b[Cc]:[\\/]`)

// host turns a word that holds a Windows path, or is an absolute path without a drive, into the same word with the path
// below the node's directory.
func (w windows) host(word string) string {
	if strings.HasPrefix(word, "/") {
		return filepath.Join(w.disk(), word)
	}
	at := drive.FindStringIndex(word)
	if at == nil {
		return word
	}
	return word[:at[0]] + filepath.Join(w.disk(), filepath.Join("/", slashed(word[at[1]:]))) // no way out by ".."
}

func slashed(windowsPath string) string { return strings.ReplaceAll(windowsPath, `\`, "/") }

func hostProcess(pod *corev1.Pod, c *corev1.Container) bool {
	if s := c.SecurityContext; s != nil && s.WindowsOptions != nil && s.WindowsOptions.HostProcess != nil {
		return *s.WindowsOptions.HostProcess
	}
	s := pod.Spec.SecurityContext
	return s != nil && s.WindowsOptions != nil && isTrue(s.WindowsOptions.HostProcess)
}

// replaceLink makes a link, in place of an older one but of nothing else.
func replaceLink(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if info, err := os.Lstat(to); err == nil {
		if info.Mode()&os.ModeSymlink == 0 {
			return fmt.Errorf("something is at %s already", to)
		}
		if err := os.Remove(to); err != nil {
			return err
		}
	}
	return os.Symlink(from, to)
}

// linux runs containers as plain processes, each pod with a loopback address of its own.
type linux struct {
	cluster layout.Cluster
	node    layout.Node
	serial  int
}

func (l *linux) has(image string) bool {
	i, known := layout.ParseImage(image)
	if !known {
		return false
	}
	_, there := l.cluster.ImageProgram(i, false)
	return there
}

func (l *linux) podIP() string {
	l.serial++
	return layout.Network{Slot: l.cluster.Slot}.Pod(l.node.Index, l.serial)
}

// serviceAccountDir is where the API server mounts a pod's service account.
const serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// prepare replaces mount paths in the command line and the environment by the directories of the volumes. In place of
// the in-cluster configuration, which cannot be moved, KUBECONFIG names one that uses the pod's own token.
func (l *linux) prepare(pod *corev1.Pod, c *corev1.Container, id string, v *volumes, env map[string]string) (launch, func(), error) {
	root := filepath.Join(filepath.Dir(v.dir), "containers", id)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return launch{}, nil, err
	}
	image, _ := layout.ParseImage(c.Image)
	mounts := map[string]string{}
	for _, m := range c.VolumeMounts {
		mounts[path.Clean(m.MountPath)] = filepath.Join(v.path(m.Name), m.SubPath)
	}
	if account, ok := mounts[serviceAccountDir]; ok {
		env["KUBECONFIG"] = filepath.Join(root, "kubeconfig")
		if err := os.WriteFile(env["KUBECONFIG"], l.kubeconfig(pod.Namespace, account), 0o600); err != nil {
			return launch{}, nil, err
		}
	}
	args := commandLine(c, "/"+image.Build(false), env)
	if path.Base(args[0]) == image.Build(false) {
		args[0], _ = l.cluster.ImageProgram(image, false)
	}
	for i := range args[1:] {
		args[i+1] = rewriteMounts(args[i+1], mounts)
	}
	for name := range env {
		env[name] = rewriteMounts(env[name], mounts)
	}
	return launch{args: args, env: assignments(env), dir: root, message: filepath.Join(root, "termination-log")}, func() {}, nil
}

func (l *linux) kubeconfig(namespace, account string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: local
  cluster: {server: %q, certificate-authority: %q}
users:
- name: pod
  user: {tokenFile: %q}
contexts:
- name: pod
  context: {cluster: local, user: pod, namespace: %q}
current-context: pod
`, l.cluster.APIServer, filepath.Join(account, "ca.crt"), filepath.Join(account, "token"), namespace)
}

// rewriteMounts replaces a mount path in a word, where it is a whole path or the beginning of one.
func rewriteMounts(word string, mounts map[string]string) string {
	best, at := "", -1
	for mount := range mounts {
		i := strings.Index(word, mount)
		if i < 0 || len(mount) <= len(best) || i > 0 && isPathByte(word[i-1]) {
			continue
		}
		if end := i + len(mount); end == len(word) || word[end] == '/' || !isPathByte(word[end]) {
			best, at = mount, i
		}
	}
	if at < 0 {
		return word
	}
	return word[:at] + mounts[best] + word[at+len(best):]
}

func isPathByte(b byte) bool {
	return b == '/' || b == '-' || b == '_' || b == '.' || '0' <= b && b <= '9' || 'a' <= b|0x20 && b|0x20 <= 'z'
}
