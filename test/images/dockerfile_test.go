package images_test

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerfile/dockerfile2llb"
	"github.com/moby/buildkit/frontend/dockerui"
	"github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"
)

const dockerfile = "../../Dockerfile"

// images answers for a registry: every image is there, for the platform that was asked for, with nothing in it.
type images struct{}

// ResolveImageConfig implements [llb.ImageMetaResolver].
func (images) ResolveImageConfig(_ context.Context, reference string, opt sourceresolver.Opt) (string, digest.Digest, []byte, error) {
	image := ocispecs.Image{RootFS: ocispecs.RootFS{Type: "layers"}}
	if opt.ImageOpt != nil && opt.ImageOpt.Platform != nil {
		image.Platform = *opt.ImageOpt.Platform
	}
	config, err := json.Marshal(image)
	return reference, digest.FromBytes(config), config, err
}

// options are those of docker buildx build --target TARGET --platform PLATFORM.
func options(text []byte, target string, platform ocispecs.Platform) dockerfile2llb.ConvertOpt {
	sources := llb.NewSourceMap(nil, "Dockerfile", "Dockerfile", text)
	sources.Definition = &llb.Definition{}
	return dockerfile2llb.ConvertOpt{
		Config:         dockerui.Config{Target: target, BuildPlatforms: []ocispecs.Platform{{OS: "linux", Architecture: "amd64"}}},
		SourceMap:      sources,
		TargetPlatform: &platform,
		MetaResolver:   images{},
	}
}

func TestTheDockerfilesTargets(t *testing.T) {
	text, err := os.ReadFile(dockerfile)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		target     string
		platform   ocispecs.Platform
		entryPoint string
		user       string
	}{
		{"manager", ocispecs.Platform{OS: "linux", Architecture: "amd64"}, "/courier", "65532:65532"},
		{"manager", ocispecs.Platform{OS: "linux", Architecture: "arm64"}, "/courier", "65532:65532"},
		{"node", ocispecs.Platform{OS: "windows", Architecture: "amd64"}, `%CONTAINER_SANDBOX_MOUNT_POINT%\courier-node.exe`, ""},
	} {
		t.Run(c.target+" for "+c.platform.OS+"/"+c.platform.Architecture, func(t *testing.T) {
			results, err := dockerfile2llb.DockerfileLint(context.Background(), text, options(text, c.target, c.platform))
			if err != nil {
				t.Fatal(err)
			}
			if results.Error != nil {
				t.Errorf("the build would fail: %s", results.Error.Message)
			}
			for _, warning := range results.Warnings {
				t.Errorf("the linter says %s: %s", warning.RuleName, warning.Detail)
			}
			result, err := dockerfile2llb.Dockerfile2LLB(context.Background(), text, options(text, c.target, c.platform))
			if err != nil {
				t.Fatal(err)
			}
			image := result.Image
			if image.OS != c.platform.OS || image.Architecture != c.platform.Architecture || image.OSVersion != "" {
				t.Errorf("the image is for %+v", image.Platform)
			}
			if !slices.Equal(image.Config.Entrypoint, []string{c.entryPoint}) || image.Config.User != c.user {
				t.Errorf("entry point %q, user %q", image.Config.Entrypoint, image.Config.User)
			}
		})
	}
}

func TestTheLinterWouldFindAFault(t *testing.T) {
	text := []byte("FROM scratch as one\nCOPY --from=two a b\nMAINTAINER nobody\n")
	results, err := dockerfile2llb.DockerfileLint(context.Background(), text,
		options(text, "one", ocispecs.Platform{OS: "linux", Architecture: "amd64"}))
	if err != nil {
		t.Fatal(err)
	}
	var rules []string
	for _, warning := range results.Warnings {
		rules = append(rules, warning.RuleName)
	}
	if got := strings.Join(rules, " "); !strings.Contains(got, "FromAsCasing") || !strings.Contains(got, "MaintainerDeprecated") {
		t.Errorf("it found %q only", got)
	}
}
