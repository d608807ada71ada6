//go:build !windows

package node

const separator = "/"

func cleanPath(path string) (string, error) { return cleanUnixPath(path) }
