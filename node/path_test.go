package node

import (
	"slices"
	"strings"
	"testing"
)

func TestWindowsPathsAreBroughtIntoOneForm(t *testing.T) {
	for given, want := range map[string]string{
		`C:\k\kubelet-ca.crt`:           `C:\k\kubelet-ca.crt`,
		`c:/k/kubelet-ca.crt`:           `C:\k\kubelet-ca.crt`,
		`C:\k\.\x\..\\kubelet-ca.crt`:   `C:\k\kubelet-ca.crt`,
		`D:\Program Files\Ключ & 鍵.crt`: `D:\Program Files\Ключ & 鍵.crt`,
		`C:\com10\lpt\console\null.crt`: `C:\com10\lpt\console\null.crt`,
		`C:\ca.crt`:                     `C:\ca.crt`,
	} {
		if got, err := cleanWindowsPath(given); got != want || err != nil {
			t.Errorf("%s: got %s, %v, want %s", given, got, err, want)
		}
	}
}

func TestWindowsPathsThatAreNoPlaceForTheFileAreRefused(t *testing.T) {
	for given, want := range map[string]string{
		"":                              "relative",
		`kubelet-ca.crt`:                "relative",
		`\k\kubelet-ca.crt`:             "relative or lacks a drive",
		`/k/kubelet-ca.crt`:             "relative or lacks a drive",
		`C:kubelet-ca.crt`:              "relative",
		`1:\k\kubelet-ca.crt`:           "relative",
		`C:\`:                           "names a drive",
		`C:\k\..`:                       "names a drive",
		`\\server\share\kubelet-ca.crt`: "network",
		`\\?\C:\k\kubelet-ca.crt`:       "device namespace",
		`//./C:/k/kubelet-ca.crt`:       "device namespace",
		`C:\k\kubelet-ca.crt.`:          "ends in a dot or a space",
		`C:\k \kubelet-ca.crt`:          "ends in a dot or a space",
		`C:\k\kubelet-ca.crt:stream`:    "no file name can have",
		`C:\k\*.crt`:                    "no file name can have",
		"C:\\k\\ca\n.crt":               "no file name can have",
		"C:\\k\\ca\x00.crt":             "no file name can have",
		`C:\k\nul`:                      "names a device",
		`C:\k\Com1.crt`:                 "names a device",
		`C:\aux\kubelet-ca.crt`:         "names a device",
		`C:\k\LPT9 .crt`:                "names a device",
	} {
		if got, err := cleanWindowsPath(given); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %s, %v, want an error that says %q", given, got, err, want)
		}
	}
}

func TestOtherPathsMustBeAbsolute(t *testing.T) {
	if got, err := cleanUnixPath("/var//lib/../kubelet-ca.crt"); got != "/var/kubelet-ca.crt" || err != nil {
		t.Errorf("got %s, %v", got, err)
	}
	for _, given := range []string{"", "ca.crt", "./ca.crt", "/", "/a/..", "/a\x00"} {
		if got, err := cleanUnixPath(given); err == nil {
			t.Errorf("%q: got %s, want an error", given, got)
		}
	}
}

func TestThePathsOfTheVolume(t *testing.T) {
	for _, c := range []struct {
		source, mountPoint string
		want               []string
	}{
		{`C:\kubelet-ca-courier\ca-bundle.crt`, "", []string{`C:\kubelet-ca-courier\ca-bundle.crt`}},
		{`C:\kubelet-ca-courier\ca-bundle.crt`, `C:\C\0123\`, []string{
			`C:\kubelet-ca-courier\ca-bundle.crt`, `C:\C\0123` + separator + `kubelet-ca-courier\ca-bundle.crt`,
		}},
		{`C:/v/ca`, `C:\hpc`, []string{`C:/v/ca`, `C:\hpc` + separator + `v/ca`}},
	} {
		if got := MountedPaths(c.source, c.mountPoint); !slices.Equal(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestTheDirectoriesOnTheWay(t *testing.T) {
	join := func(parts ...string) string { return "C:" + separator + strings.Join(parts, separator) }
	if got := steps(join("a", "b c", "d")); !slices.Equal(got, []string{join("a"), join("a", "b c"), join("a", "b c", "d")}) {
		t.Errorf("got %q", got)
	}
	if got := steps(join()); len(got) > 0 {
		t.Errorf("got %q, want none", got)
	}
	if directory, name := splitPath(join("ca.crt")); directory != join() || name != "ca.crt" {
		t.Errorf("got %q and %q", directory, name)
	}
}
