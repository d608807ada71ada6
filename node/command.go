package node

// Where the pieces are inside the node image's container. The Job, the image and the documentation all use these.
const (
	// Command is how the Job names the program, and the entry point of the node image. Both kinds of HostProcess
	// runtime replace the variable in the command line themselves, before anything is started: containerd 1.6 with
	// the directory it unpacked the image into, containerd 1.7 and later with C:\hpc, where they bind the image
	// (hcsshim internal/jobcontainers/jobcontainer.go, replaceWithMountPoint). A bare courier-node.exe would be found
	// too, but only after the working directory and the host's PATH were searched, and a directory on that PATH may
	// be writable by others.
	//
	// From containerd 1.7 on the line goes through "cmd /c", and both clean the whole line as if it were one path:
	// arguments are written with backslashes, never with a slash, and without any of cmd's special characters.
	Command = `%` + MountPointVariable + `%\` + Program

	// Program is the file name of the program, in the root directory of the image.
	Program = "courier-node.exe"

	// MountPointVariable names the environment variable that says where the runtime put the image. Where the runtime
	// cannot bind paths (containerd 1.6, Windows Server 2019), volumes lie under that directory.
	MountPointVariable = "CONTAINER_SANDBOX_MOUNT_POINT"

	// VolumePath is where the Job mounts the snapshot ConfigMap: a directory that exists on no host, since a volume
	// mounted over an existing directory hides it.
	VolumePath = `C:\kubelet-ca-courier`

	// BundleKey is the key of the snapshot ConfigMap, and so the file's name in the volume.
	BundleKey = "ca-bundle.crt"
)
