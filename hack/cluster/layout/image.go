package layout

import (
	"os"
	"path/filepath"
	"strings"
)

// programs maps the names of the images that are simulated, without registry and tag, to the program that each holds.
var programs = map[string]string{
	"kubelet-ca-courier/manager": "courier",
	"kubelet-ca-courier/node":    "courier-node.exe",
}

// Image is an image that is simulated. It has no file system but a program.
type Image struct {
	// Name is the name without registry and tag.
	Name string
	// Tag is the tag, or empty.
	Tag string
	// Program is the name of the file in the image.
	Program string
}

// ParseImage reads an image's name, from whatever registry it is said to come. It reports whether the image is one of those
// that are simulated. A digest is not looked at.
func ParseImage(reference string) (Image, bool) {
	name, _, _ := strings.Cut(reference, "@")
	tag := ""
	if i := strings.LastIndex(name, ":"); i > strings.LastIndex(name, "/") {
		name, tag = name[:i], name[i+1:]
	}
	for known, program := range programs {
		if name == known || strings.HasSuffix(name, "/"+known) {
			return Image{Name: known, Tag: tag, Program: program}, true
		}
	}
	return Image{}, false
}

// Build is the name of the program's build for Windows, or for this machine.
func (i Image) Build(windows bool) string {
	if windows {
		return i.Program
	}
	return strings.TrimSuffix(i.Program, ".exe")
}

// ImageDir is where the programs of a tag are that was given programs of its own.
func (c Cluster) ImageDir(i Image) string {
	return c.Path("images", filepath.FromSlash(i.Name), i.Tag)
}

// ImageProgram is the file that runs as the image's program: the tag's own or, for a tag that was given none, the build of
// this repository. It reports false for a tag that has a program, but none for the platform.
func (c Cluster) ImageProgram(i Image, windows bool) (string, bool) {
	build := i.Build(windows)
	if i.Tag == "" {
		return c.Bin(build), true
	}
	if _, err := os.Stat(c.ImageDir(i)); err != nil {
		return c.Bin(build), true
	}
	own := filepath.Join(c.ImageDir(i), build)
	_, err := os.Stat(own)
	return own, err == nil
}
