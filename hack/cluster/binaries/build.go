package binaries

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// goBuild is one run of `go build`.
type goBuild struct {
	what     string
	dir      string
	env      []string
	flags    []string
	output   string
	packages []string
}

// Failure is a build that failed, with what the go command said.
type Failure struct {
	What   string
	Output []string
}

func (f *Failure) Error() string {
	last := "no output"
	if len(f.Output) > 0 {
		last = f.Output[len(f.Output)-1]
	}
	return fmt.Sprintf("could not build %s: %s", f.What, last)
}

// run builds, and shows how many of the packages are compiled. `go build -v` names each package that it compiles;
// those that Go's own cache holds are not named, so the count may end early.
func (b goBuild) run(ctx context.Context, progress *Progress) error {
	if _, err := exec.LookPath("go"); err != nil {
		return &Failure{What: b.what, Output: []string{"there is no go command"}}
	}
	args := append([]string{"build", "-v", "-buildvcs=false"}, b.flags...)
	args = append(append(args, "-o", b.output), b.packages...)
	cmd := b.command(ctx, args...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	task := progress.Start("build " + b.what)
	defer task.Done()
	total := make(chan int, 1)
	go func() { total <- b.countPackages(ctx) }()
	var output []string
	compiled, of := 0, 0
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		select {
		case of = <-total:
		default:
		}
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "go: downloading "):
			task.Update(strings.TrimPrefix(line, "go: "))
		case strings.ContainsAny(line, " \t:"):
			output = append(output, line)
		default:
			compiled++
			task.Update(fmt.Sprintf("%s packages compiled, at %s", fraction(compiled, of), line))
		}
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &Failure{What: b.what, Output: output}
	}
	return nil
}

func fraction(n, of int) string {
	if of == 0 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d of %d", min(n, of), of)
}

// countPackages is zero when it cannot tell: the build itself will say what is wrong.
func (b goBuild) countPackages(ctx context.Context) int {
	out, err := b.command(ctx, append([]string{"list", "-deps"}, b.packages...)...).Output()
	if err != nil {
		return 0
	}
	return bytes.Count(out, []byte("\n"))
}

func (b goBuild) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = b.dir
	cmd.Env = append(append(os.Environ(), "GOWORK=off"), b.env...)
	return cmd
}
