package attack

import (
	"fmt"
	"testing"

	"kubelet-ca-courier/dispatcher"
)

// settings is a configuration with a destination and further arguments.
func settings(destination, arguments string) map[string]string {
	return map[string]string{dispatcher.SettingsKey: fmt.Sprintf(`guarded: {namespace: n, name: c, key: k}
image: i
destination: %q
extraArgs: [%s]
`, destination, arguments)}
}

func TestNoPathInTheConfigurationLeadsElsewhere(t *testing.T) {
	if _, err := dispatcher.ParseConfig(settings(`C:\k\kubelet-ca.crt`, "")); err != nil {
		t.Fatal(err)
	}
	for _, destination := range []string{
		`C:\k\..\Windows\System32\drivers\etc\hosts`, `C:\..\x`, `\\server\share\x`, `\\?\C:\k\x`, `\\.\PhysicalDrive0`, `k\x`, `C:x`, `\k\x`,
		`C:\k\x:stream`, `C:\k\x" & calc & "`, `C:\k\%PATH%`, `C:\k\x|y`, `C:\k\x>y`, "C:\\k\\x\ny", `C:\k\^x`, `/etc/passwd`, `C:/k/x`, ``,
	} {
		if _, err := dispatcher.ParseConfig(settings(destination, "")); err == nil {
			t.Errorf("destination %q is accepted", destination)
		}
	}
}

func TestNoArgumentInTheConfigurationTakesOver(t *testing.T) {
	for _, argument := range []string{
		`"--source", 'C:\evil'`, `"--sha256=00"`, `"--destination", x`, `"-destination=x"`, `"--dry-run"`, `"--check=true"`, `"&calc"`, `"%PATH%"`, `"a\nb"`,
	} {
		if _, err := dispatcher.ParseConfig(settings(`C:\k\x`, argument)); err == nil {
			t.Errorf("extraArgs %s is accepted", argument)
		}
	}
}
