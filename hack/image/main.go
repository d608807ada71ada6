// Command image assembles the two images without Docker: the manager for linux/amd64 and linux/arm64, and the HostProcess
// image of the landing for windows/amd64. It writes them to OCI archives, with a list of what is in them beside, or
// pushes them to a registry. Two runs over the same sources with the same Go give the same digests.
//
//	go run ./hack/image                                        # install/manager.tar, install/node.tar
//	go run ./hack/image --push registry.example/courier --tag v1
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"kubelet-ca-courier/hack/build"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\nhint: go run ./hack/image --help lists the flags\n", err)
		os.Exit(1)
	}
}

// settings is the command line.
type settings struct {
	output, push, tag, version string
	managerBase, nodeBase      string
}

func parse(arguments []string, stderr io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.output, "output", "install", "directory for the archives and lists; not used with --push")
	flags.StringVar(&s.push, "push", "", "push to `PREFIX`/manager and PREFIX/node instead")
	flags.StringVar(&s.tag, "tag", "dev", "tag of both images")
	flags.StringVar(&s.version, "version", "", "version in the manager, labels and lists (default the tag)")
	flags.StringVar(&s.managerBase, "manager-base", "", "base of the manager, `IMAGE` or tarball, like gcr.io/distroless/static:nonroot (default none)")
	flags.StringVar(&s.nodeBase, "node-base", "", "base of the node image, `IMAGE` or tarball (default none)")
	if err := flags.Parse(arguments); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if s.version == "" {
		s.version = s.tag
	}
	return s, nil
}

func run(ctx context.Context, arguments []string, stdout, stderr io.Writer) error {
	s, err := parse(arguments, stderr)
	if err != nil {
		return err
	}
	created, err := creationTime(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	root, err := build.Root(ctx)
	if err != nil {
		return err
	}
	for _, recipe := range recipes(s.managerBase, s.nodeBase) {
		product, err := recipe.build(ctx, root, s.version, created, stderr)
		if err != nil {
			return err
		}
		if err := deliver(ctx, product, s, stdout); err != nil {
			return err
		}
	}
	return nil
}

// creationTime is what the images say of when they were made: the same for the same sources
// (https://reproducible-builds.org/specs/source-date-epoch/).
func creationTime(epoch string) (time.Time, error) {
	if epoch == "" {
		return time.Unix(0, 0).UTC(), nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// build compiles the recipe's program for each platform and puts it into an image.
func (r recipe) build(ctx context.Context, root, version string, created time.Time, progress io.Writer) (product, error) {
	scratch, err := os.MkdirTemp("", "program")
	if err != nil {
		return product{}, err
	}
	defer os.RemoveAll(scratch) //nolint:errcheck // a temporary directory
	result := product{recipe: r}
	var options []build.Option
	if r.versioned {
		options = append(options, build.Version(version))
	}
	for _, platform := range r.platforms {
		fmt.Fprintf(progress, "building %s for %s\n", r.name, platform)
		file := filepath.Join(scratch, platform.Architecture)
		if err := build.Program(ctx, root, r.program, platform.OS, platform.Architecture, file, options...); err != nil {
			return product{}, err
		}
		program, err := os.ReadFile(file)
		if err != nil {
			return product{}, err
		}
		base, err := loadBase(ctx, r.base, platform)
		if err != nil {
			return product{}, err
		}
		image, err := r.assemble(base, platform, program, version, created)
		if err != nil {
			return product{}, err
		}
		list, err := sbom(r.file, program, version, created)
		if err != nil {
			return product{}, err
		}
		result.built = append(result.built, built{platform: platform, image: image, sbom: list})
	}
	return result, nil
}

// deliver pushes or writes the product and prints where it went.
func deliver(ctx context.Context, p product, s settings, stdout io.Writer) error {
	if s.push != "" {
		reference, err := p.push(ctx, s.push, s.tag, s.version)
		if err != nil {
			return err
		}
		return p.announce(stdout, reference.String(), s.version)
	}
	if err := p.archive(s.output, s.tag, s.version); err != nil {
		return err
	}
	return p.announce(stdout, filepath.Join(s.output, p.recipe.name+".tar"), s.version)
}

// announce prints a place and the digest of what is there.
func (p product) announce(stdout io.Writer, place, version string) error {
	digest, err := p.built[0].image.Digest()
	if err != nil {
		return err
	}
	index, err := p.index(version)
	if err != nil {
		return err
	}
	if index != nil {
		if digest, err = index.Digest(); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(stdout, "%s %s\n", place, digest)
	return err
}
