package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Plan says what a cluster is brought up with.
type Plan struct {
	// Windows are the names of the Windows nodes. Without any there is no other node either, and no cert-manager.
	Windows []string
	// Signers are those whose CAs the guarded ConfigMap holds at first.
	Signers []string
	// Install installs courier with Overlay.
	Install bool
}

// BringUp brings up the cluster of a lab as planned. Also with an error there may be something to end.
func (l *Lab) BringUp(ctx context.Context, plan Plan) error {
	if _, err := l.Cluster(ctx, "up"); err != nil {
		return err
	}
	if len(plan.Windows) > 0 {
		if err := l.Furnish(ctx, plan.Windows...); err != nil {
			return err
		}
	}
	if err := l.SeedOpenShift(ctx, plan.Signers...); err != nil || !plan.Install {
		return err
	}
	return l.Install(ctx)
}

// endLimit bounds how long ending a cluster may take, whatever became of the context that it was brought up with.
const endLimit = 3 * time.Minute

// End ends the cluster and removes its files. With keepLogs, the logs of every process stay, and the progress tells where.
// Commands of the cluster that still run, in other goroutines, are ended before: one that starts a process would leave it behind.
func (l *Lab) End(keepLogs bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	l.end()
	l.running.Lock()
	defer l.running.Unlock()
	down := func() error {
		_, err := run(l.command(ctx, []string{"down"}), l.progress)
		return err
	}
	if !keepLogs {
		return down()
	}
	kept, err := os.MkdirTemp("", "courier-logs-")
	if err != nil {
		return err
	}
	copied := os.CopyFS(filepath.Join(kept, "logs"), os.DirFS(filepath.Join(l.Dir, "logs")))
	if err := errors.Join(copied, down()); err != nil {
		return err
	}
	_, err = fmt.Fprintf(l.progress, "the logs of every process are in %s\n", filepath.Join(kept, "logs"))
	return err
}
