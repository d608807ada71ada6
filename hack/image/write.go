package main

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	spdxMediaType = "application/spdx+json"
	fileMode      = 0o644
)

// built is an image for one platform with the list of what is in it.
type built struct {
	platform v1.Platform
	image    v1.Image
	sbom     []byte
}

// product is all of one name: an image, or an index of one image for each platform.
type product struct {
	recipe recipe
	built  []built
}

// index returns the index of the product's images; nil when there is just one.
func (p product) index(version string) (v1.ImageIndex, error) {
	if len(p.built) == 1 {
		return nil, nil
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, b := range p.built {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: b.image, Descriptor: v1.Descriptor{Platform: &b.platform}})
	}
	annotated, ok := mutate.Annotations(index, p.recipe.labels(version)).(v1.ImageIndex)
	if !ok {
		return nil, fmt.Errorf("annotate the index: not an index")
	}
	return annotated, nil
}

// archive writes the product as an OCI image layout in a tar file, which podman, skopeo, containerd and newer Docker
// load, and the lists of what is in it beside that.
func (p product) archive(directory, tag, version string) error {
	if err := os.MkdirAll(directory, directoryMode); err != nil {
		return err
	}
	for _, b := range p.built {
		list := fmt.Sprintf("%s-%s-%s.spdx.json", p.recipe.name, b.platform.OS, b.platform.Architecture)
		if err := os.WriteFile(filepath.Join(directory, list), b.sbom, fileMode); err != nil {
			return err
		}
	}
	scratch, err := os.MkdirTemp("", "layout")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch) //nolint:errcheck // a temporary directory
	path, err := layout.Write(scratch, empty.Index)
	if err != nil {
		return err
	}
	named := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag})
	index, err := p.index(version)
	switch {
	case err != nil:
		return err
	case index != nil:
		err = path.AppendIndex(index, named)
	default:
		err = path.AppendImage(p.built[0].image, named)
	}
	if err != nil {
		return err
	}
	return pack(scratch, filepath.Join(directory, p.recipe.name+".tar"))
}

// pack writes the regular files of a directory into a tar file that depends on their names and content alone.
func pack(directory, file string) (err error) {
	output, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := output.Close(); err == nil {
			err = closeErr
		}
	}()
	writer := tar.NewWriter(output)
	err = filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		return packFile(writer, directory, path)
	})
	if err != nil {
		return err
	}
	return writer.Close()
}

func packFile(writer *tar.Writer, directory, path string) error {
	relative, err := filepath.Rel(directory, path)
	if err != nil {
		return err
	}
	input, err := os.Open(path)
	if err != nil {
		return err
	}
	defer input.Close() //nolint:errcheck // opened for reading
	info, err := input.Stat()
	if err != nil {
		return err
	}
	header := &tar.Header{Name: filepath.ToSlash(relative), Mode: fileMode, Size: info.Size(), ModTime: time.Unix(0, 0)}
	if err := writer.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(writer, input)
	return err
}

// push pushes the product under the prefix, and for each image the list of what is in it as an artifact that refers to
// the image (OCI distribution specification, referrers).
func (p product) push(ctx context.Context, prefix, tag, version string) (name.Reference, error) {
	reference, err := name.ParseReference(prefix + "/" + p.recipe.name + ":" + tag)
	if err != nil {
		return nil, err
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	index, err := p.index(version)
	switch {
	case err != nil:
		return nil, err
	case index != nil:
		err = remote.WriteIndex(reference, index, options...)
	default:
		err = remote.Write(reference, p.built[0].image, options...)
	}
	if err != nil {
		return nil, err
	}
	for _, b := range p.built {
		artifact, err := referrer(b)
		if err != nil {
			return nil, err
		}
		digest, err := artifact.Digest()
		if err != nil {
			return nil, err
		}
		if err := remote.Write(reference.Context().Digest(digest.String()), artifact, options...); err != nil {
			return nil, err
		}
	}
	return reference, nil
}

// referrer returns the list as an artifact that refers to its image.
func referrer(b built) (v1.Image, error) {
	subject, err := partial.Descriptor(b.image)
	if err != nil {
		return nil, err
	}
	artifact, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		static.NewLayer(b.sbom, spdxMediaType))
	if err != nil {
		return nil, err
	}
	artifact = mutate.ConfigMediaType(artifact, spdxMediaType)
	referring, ok := mutate.Subject(artifact, *subject).(v1.Image)
	if !ok {
		return nil, fmt.Errorf("refer to the image: not an image")
	}
	return referring, nil
}
