package node

const separator = `\`

func cleanPath(path string) (string, error) { return cleanWindowsPath(path) }
