package node

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// largestBundle bounds what is read from a file that anybody may have put in place. The subjects of a usable bundle fit
// in 64 KiB.
const largestBundle = 16 << 20

// inspectDestination decides whether the destination is a place to write to. Every directory on the way is looked at,
// since a junction in the middle leads elsewhere just as well; the root of the drive cannot be one.
func (l *landing) inspectDestination() *failure {
	clean, err := cleanPath(l.task.Destination)
	if err != nil {
		return refuse(err, "")
	}
	l.task.Destination, l.result.Destination = clean, clean
	directory, _ := splitPath(clean)
	missing, failure := l.missingDirectories(directory)
	if failure != nil {
		return failure
	}
	if len(missing) > 0 {
		return l.prepareParent(missing)
	}
	l.warnOfUsers(directory)
	return l.inspectFile(clean)
}

// inspectFile looks at the destination itself.
func (l *landing) inspectFile(path string) *failure {
	entry, err := l.Disk.Inspect(path)
	switch {
	case err != nil:
		return diskFailure(fmt.Errorf("look at the destination: %w", err))
	case entry.Kind == Missing:
		l.result.Outcome = Created
	case entry.Kind != Regular:
		return refuse(fmt.Errorf("the destination is %s", entry.Kind), "name the file itself")
	case entry.Size > largestBundle:
		return refuse(fmt.Errorf("the destination has %d bytes and is no CA bundle", entry.Size), "")
	case entry.ReadOnly && l.task.Mode != Check:
		return fail(ExitWriteFailed, errors.New("the destination is read-only"), "somebody set it so: ask why, then attrib -r")
	}
	return nil
}

// missingDirectories returns the directories on the way that are not there, outermost first.
func (l *landing) missingDirectories(directory string) ([]string, *failure) {
	var missing []string
	for _, step := range steps(directory) {
		if len(missing) > 0 {
			missing = append(missing, step)
			continue
		}
		entry, err := l.Disk.Inspect(step)
		switch {
		case err != nil:
			return nil, diskFailure(fmt.Errorf("look at the destination's directory: %w", err))
		case entry.Kind == Missing:
			missing = append(missing, step)
		case entry.Kind != Directory:
			return nil, refuse(fmt.Errorf("%s, on the way to the destination, is %s", step, entry.Kind),
				"give the path without links")
		}
	}
	return missing, nil
}

// prepareParent creates what is missing on the way, when that was asked for.
func (l *landing) prepareParent(missing []string) *failure {
	l.result.Outcome = Created
	if l.task.Mode == Check {
		return nil
	}
	if !l.task.CreateParent {
		return refuse(fmt.Errorf("the destination's directory is missing: %s", missing[0]),
			"is this the kubelet's clientCAFile? then --create-parent")
	}
	if l.task.Mode == DryRun {
		return nil
	}
	for _, directory := range missing {
		if err := l.Disk.CreateDirectory(directory); err != nil && !errors.Is(err, fs.ErrExist) {
			return diskFailure(fmt.Errorf("create the destination's directory: %w", err))
		}
	}
	return nil
}

// warnOfUsers reports a directory in which ordinary users can replace the file.
func (l *landing) warnOfUsers(directory string) {
	open, err := l.Disk.OpenToUsers(directory)
	switch {
	case err != nil:
		l.warn("cannot tell who may write to " + directory + ": " + err.Error())
	case open:
		l.warn("ordinary users can write to " + directory + ": whoever can replace the file decides whom the kubelet obeys")
	}
}

func (l *landing) warn(message string) { l.result.Warnings = append(l.result.Warnings, message) }

func refuse(err error, hint string) *failure { return fail(ExitDestinationRefused, err, hint) }

// steps returns the directory and all that hold it, outermost first, the root left out.
func steps(directory string) []string {
	var steps []string
	for {
		parent, name := splitPath(directory)
		if name == "" {
			return steps
		}
		steps = append([]string{directory}, steps...)
		directory = parent
	}
}

// splitPath splits a clean path into directory and name. The root's name is empty.
func splitPath(path string) (directory, name string) {
	i := strings.LastIndex(path, separator)
	if strings.Count(path, separator) == 1 { // directly below the root, whose separator belongs to it
		return path[:i+1], path[i+1:]
	}
	return path[:i], path[i+1:]
}
