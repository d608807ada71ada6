package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"kubelet-ca-courier/hack/cluster/layout"
)

// image is the command for images. There is no registry: what a tag holds is a file in the cluster's directory.
func (a *app) image() *cobra.Command {
	root := &cobra.Command{Use: "image", Short: "give a tag of an image a program of its own"}
	add := &cobra.Command{Use: "add NAME:TAG PROGRAM", Args: exactly("NAME:TAG", "PROGRAM"),
		Short: "let containers of this image and tag run that program, from whatever registry their image is said to come",
		Long: "Let containers of this image and tag run that program, from whatever registry their image is said to come. The\n" +
			"program is copied; containers that run go on with the one they have. A tag that was given no program runs the\n" +
			"build of this repository. A node image may hold a build for Windows and one for this machine beside it; a node\n" +
			"that needs the one that is missing cannot pull the image."}
	add.RunE = func(_ *cobra.Command, args []string) error {
		c, _, err := a.load()
		if err != nil {
			return err
		}
		path, err := addImage(c, args[0], args[1])
		if err != nil {
			return err
		}
		return a.print(path, path+"\n")
	}
	root.AddCommand(add)
	return root
}

// addImage copies the program to where the tag's containers find it, and returns the place.
func addImage(c layout.Cluster, reference, program string) (string, error) {
	image, known := layout.ParseImage(reference)
	switch {
	case !known:
		return "", hint(fmt.Errorf("%q is no image that is simulated", reference), "they are kubelet-ca-courier/manager and kubelet-ca-courier/node")
	case image.Tag == "":
		return "", usageError{fmt.Errorf("%q has no tag", reference)}
	}
	data, err := os.ReadFile(program)
	if err != nil {
		return "", hint(err, "PROGRAM is an executable file")
	}
	windows := bytes.HasPrefix(data, []byte("MZ"))
	switch {
	case !windows && !bytes.HasPrefix(data, []byte("\x7fELF")):
		err = fmt.Errorf("%s is no program for Linux or Windows", program)
	case windows && image.Build(true) == image.Build(false):
		err = errors.New(program + " is a program for Windows, where " + image.Name + " does not run")
	}
	if err != nil {
		return "", hint(err, "build it with 'go build'")
	}
	if err := os.MkdirAll(c.ImageDir(image), 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(c.ImageDir(image), image.Build(windows))
	return path, layout.WriteFile(path, data, 0o755)
}
