package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Plan says what a cluster is brought up with.
type Plan struct {
	// Windows are the names of the Windows nodes.
	Windows []string
	// Signers are those whose CAs the guarded ConfigMap holds at first.
	Signers []string
	// Install installs courier with Overlay.
	Install bool
}

// BringUp brings up the cluster of a directory as planned. It returns the lab whenever there is something to end, also with an
// error. Progress goes to the writer.
func BringUp(ctx context.Context, dir string, plan Plan, progress io.Writer) (*Lab, error) {
	l, err := Open(ctx, dir, progress)
	if err != nil {
		return nil, err
	}
	if _, err := l.Cluster(ctx, "up"); err != nil {
		return l, err
	}
	if err := l.Furnish(ctx, plan.Windows...); err != nil {
		return l, err
	}
	if err := l.SeedOpenShift(ctx, plan.Signers...); err != nil || !plan.Install {
		return l, err
	}
	return l, l.Install(ctx)
}

// endLimit bounds how long ending a cluster may take, whatever became of the context that it was brought up with.
const endLimit = 3 * time.Minute

// End ends the cluster and removes its files. With keepLogs, the logs of every process stay, and the progress tells where.
func (l *Lab) End(keepLogs bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	if !keepLogs {
		_, err := l.Cluster(ctx, "down")
		return err
	}
	kept, err := os.MkdirTemp("", "courier-logs-")
	if err != nil {
		return err
	}
	copied := os.CopyFS(filepath.Join(kept, "logs"), os.DirFS(filepath.Join(l.Dir, "logs")))
	_, err = l.Cluster(ctx, "down")
	if err := errors.Join(copied, err); err != nil {
		return err
	}
	_, err = fmt.Fprintf(l.progress, "the logs of every process are in %s\n", filepath.Join(kept, "logs"))
	return err
}
