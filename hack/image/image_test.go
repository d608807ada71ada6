package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"kubelet-ca-courier/hack/build"
	"kubelet-ca-courier/node"
)

const (
	root    = "../.."
	version = "v1.2.3"
	tag     = "test"
)

// find returns the recipe of a name.
func find(t *testing.T, wanted, base string) recipe {
	t.Helper()
	for _, r := range recipes(base, base) {
		if r.name == wanted {
			return r
		}
	}
	t.Fatalf("no recipe %s", wanted)
	return recipe{}
}

// buildNode builds the node image as the command does.
func buildNode(t *testing.T) product {
	t.Helper()
	p, err := find(t, "node", "").build(context.Background(), root, version, time.Unix(0, 0).UTC(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// startRegistry starts a registry and returns the prefix of its repositories.
func startRegistry(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true)))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://") + "/kubelet-ca-courier"
}

// pull pulls an image of the product back.
func pull(t *testing.T, p product, prefix string, platform v1.Platform) v1.Image {
	t.Helper()
	reference, err := p.push(context.Background(), prefix, tag, version)
	if err != nil {
		t.Fatal(err)
	}
	image, err := remote.Image(reference, remote.WithPlatform(platform))
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// entries returns the headers in an image's last layer, and the content of its last file.
func entries(t *testing.T, image v1.Image) ([]*tar.Header, []byte) {
	t.Helper()
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	content, err := layers[len(layers)-1].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	var headers []*tar.Header
	var last []byte
	for reader := tar.NewReader(content); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return headers, last
		}
		if err != nil {
			t.Fatal(err)
		}
		headers = append(headers, header)
		if last, err = io.ReadAll(reader); err != nil {
			t.Fatal(err)
		}
	}
}

func config(t *testing.T, image v1.Image) *v1.ConfigFile {
	t.Helper()
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestTheNodeImageIsWhatAHostProcessContainerNeeds(t *testing.T) {
	prefix := startRegistry(t)
	platform := v1.Platform{OS: "windows", Architecture: "amd64"}
	image := pull(t, buildNode(t), prefix, platform)
	file := config(t, image)
	if file.OS != "windows" || file.Architecture != "amd64" || file.OSVersion != "" {
		t.Errorf("platform %s/%s, version %q", file.OS, file.Architecture, file.OSVersion)
	}
	if want := []string{node.Command}; !slices.Equal(file.Config.Entrypoint, want) || len(file.Config.Cmd) > 0 {
		t.Errorf("entry point %q, want %q, which the Job uses", file.Config.Entrypoint, want)
	}
	headers, program := entries(t, image)
	var names []string
	for _, header := range headers {
		names = append(names, header.Name)
		if header.PAXRecords["MSWINDOWS.fileattr"] == "" {
			t.Errorf("%s has no Windows attributes", header.Name)
		}
	}
	if want := []string{"Files", "Hives", "Files/" + node.Program}; !slices.Equal(names, want) {
		t.Errorf("layer holds %q, want %q", names, want)
	}
	wantProgram(t, program)
	wantLabels(t, image)
	wantList(t, prefix, image, "golang.org/x/sys")
}

// wantProgram asserts that the program is the one that the tests under Wine build and run.
func wantProgram(t *testing.T, got []byte) {
	t.Helper()
	tested := filepath.Join(t.TempDir(), "tested.exe")
	if err := build.Program(context.Background(), root, "courier-node", "windows", "amd64", tested); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(tested)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the layer's program has %d bytes and is not the tested one of %d", len(got), len(want))
	}
}

// wantLabels asserts that labels and annotations say the same.
func wantLabels(t *testing.T, image v1.Image) {
	t.Helper()
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	labels := config(t, image).Config.Labels
	if !maps.Equal(labels, manifest.Annotations) || labels["org.opencontainers.image.version"] != version {
		t.Errorf("labels %v, annotations %v", labels, manifest.Annotations)
	}
}

// wantList asserts that the registry knows an SPDX list of the image, with a module in it.
func wantList(t *testing.T, prefix string, image v1.Image, module string) {
	t.Helper()
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	repository, err := name.NewRepository(prefix + "/node")
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Referrers(repository.Digest(digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 {
		t.Fatalf("%d artifacts refer to the image, want 1", len(manifest.Manifests))
	}
	artifact, err := remote.Image(repository.Digest(manifest.Manifests[0].Digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	layers, err := artifact.Layers()
	if err != nil {
		t.Fatal(err)
	}
	content, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	var document spdxDocument
	if err := json.NewDecoder(content).Decode(&document); err != nil {
		t.Fatal(err)
	}
	if document.SPDXVersion != "SPDX-2.3" || !slices.ContainsFunc(document.Packages, func(p spdxPackage) bool {
		return p.Name == module && p.Version != "" && strings.HasPrefix(p.ExternalRefs[0].Locator, "pkg:golang/"+module+"@")
	}) {
		t.Errorf("the list lacks %s: %+v", module, document.Packages)
	}
}

func TestTheManagerImageIsForTwoArchitecturesAndNotForRoot(t *testing.T) {
	r := find(t, "manager", "")
	p := product{recipe: r}
	created := time.Unix(0, 0).UTC()
	for _, platform := range r.platforms {
		base, err := loadBase(context.Background(), r.base, platform)
		if err != nil {
			t.Fatal(err)
		}
		image, err := r.assemble(base, platform, []byte("program for "+platform.Architecture), version, created)
		if err != nil {
			t.Fatal(err)
		}
		p.built = append(p.built, built{platform: platform, image: image, sbom: []byte("{}")})
	}
	prefix := startRegistry(t)
	for _, architecture := range []string{"amd64", "arm64"} {
		image := pull(t, p, prefix, v1.Platform{OS: "linux", Architecture: architecture})
		file := config(t, image)
		if file.OS != "linux" || file.Architecture != architecture || file.Config.User != nonRoot ||
			!slices.Equal(file.Config.Entrypoint, []string{"/courier"}) {
			t.Errorf("got %+v", file)
		}
		headers, program := entries(t, image)
		if len(headers) != 1 || headers[0].Name != "courier" || headers[0].Mode != programMode {
			t.Errorf("layer holds %+v", headers)
		}
		if string(program) != "program for "+architecture {
			t.Errorf("the program is %q", program)
		}
		wantLabels(t, image)
	}
}

func TestTwoBuildsAreTheSameToTheByte(t *testing.T) {
	var archives [][]byte
	for range 2 {
		directory := t.TempDir()
		if err := buildNode(t).archive(directory, tag, version); err != nil {
			t.Fatal(err)
		}
		var all []byte
		for _, file := range []string{"node.tar", "node-windows-amd64.spdx.json"} {
			data, err := os.ReadFile(filepath.Join(directory, file))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, data...)
		}
		archives = append(archives, all)
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the second archive differs")
	}
}

func TestTheDockerfileNamesTheSameEntryPoint(t *testing.T) {
	dockerfile, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range recipes("", "") {
		entryPoint, err := json.Marshal([]string{r.entryPoint})
		if err != nil {
			t.Fatal(err)
		}
		if line := "ENTRYPOINT " + string(entryPoint) + "\n"; !strings.Contains(string(dockerfile), line) {
			t.Errorf("the Dockerfile lacks %s", line)
		}
	}
}

func TestABaseKeepsItsLayersAndLosesItsWindowsVersion(t *testing.T) {
	base, err := random.Image(100, 2)
	if err != nil {
		t.Fatal(err)
	}
	if base, err = mutate.ConfigFile(base, &v1.ConfigFile{
		OS: "windows", Architecture: "amd64", OSVersion: "10.0.20348.1", RootFS: config(t, base).RootFS,
	}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "base.tar")
	reference, err := name.NewTag("base:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(file, reference, base); err != nil {
		t.Fatal(err)
	}
	r := find(t, "node", file)
	loaded, err := loadBase(context.Background(), r.base, r.platforms[0])
	if err != nil {
		t.Fatal(err)
	}
	image, err := r.assemble(loaded, r.platforms[0], []byte("program"), version, time.Unix(0, 0).UTC())
	if err != nil {
		t.Fatal(err)
	}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	if got := config(t, image); len(layers) != 3 || got.OSVersion != "" || got.Config.Labels["org.opencontainers.image.base.name"] != file {
		t.Errorf("%d layers, %+v", len(layers), got)
	}
}

func TestTheProgramInTheWindowsLayerBelongsToAdministrators(t *testing.T) {
	layer, err := windowsLayer("a.exe", []byte("program"), time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	content, err := layer.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	var raw string
	for reader := tar.NewReader(content); ; {
		header, err := reader.Next()
		if err != nil {
			break
		}
		raw = header.PAXRecords["MSWINDOWS.rawsd"]
	}
	got, err := base64.StdEncoding.DecodeString(raw)
	if err != nil {
		t.Fatal(err)
	}
	// What ConvertStringSecurityDescriptorToSecurityDescriptor makes of O:BAG:SYD:(A;;FA;;;SY)(A;;FA;;;BA).
	const want = "01000480" + "14000000" + "24000000" + "00000000" + "30000000" +
		"01020000000000052000000020020000" + // owner S-1-5-32-544
		"010100000000000512000000" + // group S-1-5-18
		"0200340002000000" + // two entries
		"00001400ff011f00" + "010100000000000512000000" + // full control for S-1-5-18
		"00001800ff011f00" + "01020000000000052000000020020000" // and for S-1-5-32-544
	if hex.EncodeToString(got) != want {
		t.Errorf("got %x, want %s", got, want)
	}
}
