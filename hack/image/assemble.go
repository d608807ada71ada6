package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"kubelet-ca-courier/node"
)

// nonRoot is the user of distroless images with the tag nonroot.
const nonRoot = "65532:65532"

// recipe says what an image is made of.
type recipe struct {
	name        string // last part of the image's name
	description string
	program     string // in cmd/
	versioned   bool   // the program says of which version it is
	file        string // in the image's root directory
	entryPoint  string
	user        string
	base        string // reference, tarball, or empty for none
	platforms   []v1.Platform
}

// recipes returns the two images.
//
// Both work without a base. The programs are static, the manager's trust comes from its service account's volume, and
// neither looks at a time zone, a user database or the system's CA roots. A HostProcess container uses nothing of its
// image but the program; what unpacks the layer (hcsshim, wclayer.ConvertToBaseLayer) supplies the registry hives that a
// Windows base layer must have as empty files. Windows Server 2025 is reported to insist on valid ones
// (microsoft/windows-host-process-containers-base-image): there, take that base.
func recipes(managerBase, nodeBase string) []recipe {
	return []recipe{{
		name:        "manager",
		description: "webhook and dispatcher of kubelet-ca-courier",
		program:     "courier",
		versioned:   true,
		file:        "courier",
		entryPoint:  "/courier",
		user:        nonRoot,
		base:        managerBase,
		platforms:   []v1.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}},
	}, {
		name:        "node",
		description: "lands the kubelet's client-CA file on a Windows node, in a HostProcess container",
		program:     "courier-node",
		file:        node.Program,
		entryPoint:  node.Command,
		base:        nodeBase,
		platforms:   []v1.Platform{{OS: "windows", Architecture: "amd64"}},
	}}
}

// labels returns the image's labels, which are its manifest's annotations too (OCI image specification, annotations.md).
func (r recipe) labels(version string) map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title":       "kubelet-ca-courier " + r.name,
		"org.opencontainers.image.description": r.description,
		"org.opencontainers.image.version":     version,
		"org.opencontainers.image.licenses":    "Apache-2.0",
	}
	if r.base != "" {
		labels["org.opencontainers.image.base.name"] = r.base
	}
	return labels
}

// assemble puts the program on the base. The image depends on its arguments alone.
func (r recipe) assemble(base v1.Image, platform v1.Platform, program []byte, version string, created time.Time) (v1.Image, error) {
	makeLayer := linuxLayer
	if platform.OS == "windows" {
		makeLayer = windowsLayer
	}
	layer, err := makeLayer(r.file, program, created)
	if err != nil {
		return nil, err
	}
	image, err := mutate.Append(mutate.MediaType(base, types.OCIManifestSchema1), mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: created}, CreatedBy: "hack/image", Comment: r.file},
	})
	if err != nil {
		return nil, err
	}
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = platform.OS, platform.Architecture, platform.Variant
	config.OSVersion = "" // a HostProcess image runs on every build of Windows; with a version containerd would compare
	config.Created = v1.Time{Time: created}
	config.Config.Entrypoint, config.Config.Cmd = []string{r.entryPoint}, nil
	config.Config.User = r.user
	config.Config.Labels = r.labels(version)
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	annotated, ok := mutate.Annotations(image, r.labels(version)).(v1.Image)
	if !ok {
		return nil, fmt.Errorf("annotate the image: not an image")
	}
	return annotated, nil
}

// loadBase returns the base image: none, from a tarball as "docker save" writes it, or from a registry.
func loadBase(ctx context.Context, base string, platform v1.Platform) (v1.Image, error) {
	if base == "" {
		return empty.Image, nil
	}
	if _, err := os.Stat(base); err == nil {
		return tarball.ImageFromPath(base, nil)
	}
	reference, err := name.ParseReference(base)
	if err != nil {
		return nil, fmt.Errorf("base image: %w", err)
	}
	image, err := remote.Image(reference, remote.WithContext(ctx), remote.WithPlatform(platform),
		remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return nil, fmt.Errorf("base image: %w", err)
	}
	return image, nil
}
