// Package build compiles the programs that ship, in the one way in which they ship, so that what is tested is what is in
// the images: the same sources give the same bytes on every machine with the same Go.
package build

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Option changes what a build is made of.
type Option func(*options)

type options struct{ version, overlay string }

// Version makes the program say that it is of that version, where it says one; "dev" otherwise.
func Version(version string) Option { return func(o *options) { o.version = version } }

// Overlay compiles other files in the place of some, as the JSON file says that `go build -overlay` takes: for tests that
// need a build which differs.
func Overlay(file string) Option { return func(o *options) { o.overlay = file } }

// Program compiles ./cmd/NAME of the module in root for a platform into the file output.
func Program(ctx context.Context, root, name, goos, goarch, output string, change ...Option) error {
	absolute, err := filepath.Abs(output)
	if err != nil {
		return err
	}
	var o options
	for _, option := range change {
		option(&o)
	}
	linker := "-s -w"
	if o.version != "" {
		linker += " -X main.version=" + o.version
	}
	arguments := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=" + linker, "-o", absolute}
	if o.overlay != "" {
		arguments = append(arguments, "-overlay", o.overlay)
	}
	command := exec.CommandContext(ctx, "go", append(arguments, "./cmd/"+name)...)
	command.Dir = root
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch, "GOAMD64=v1", "GOFLAGS=")
	if message, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s for %s/%s: %w: %s", name, goos, goarch, err, bytes.TrimSpace(message))
	}
	return nil
}

// Root returns the directory of the module that the working directory is in.
func Root(ctx context.Context) (string, error) {
	output, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	file := strings.TrimSpace(string(output))
	if file == "" || file == os.DevNull {
		return "", fmt.Errorf("the working directory is in no Go module")
	}
	return filepath.Dir(file), nil
}
