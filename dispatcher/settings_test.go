package dispatcher

import (
	"strings"
	"testing"
	"time"
)

const minimal = `guarded: {namespace: a, name: b, key: c}
destination: C:\k\kubelet-ca.crt
image: node:1
`

func TestLeftOutSettingsHaveTheirDefaults(t *testing.T) {
	c, err := ParseConfig(map[string]string{SettingsKey: minimal})
	if err != nil {
		t.Fatal(err)
	}
	if c.Mode != Enforce || !*c.SlowStart || c.MaxParallel != 0 || c.LookAgain.Duration != 24*time.Hour || c.Deadline.Duration != 10*time.Minute {
		t.Errorf("defaults %+v", c.Settings)
	}
}

func TestArgumentsForTheLandingAreTakenInEachSpelling(t *testing.T) {
	for _, arguments := range []string{
		"[]", "[--create-parent]", "[--create-parent=true, --patience, 1m30s]", "[--confirm=10.0.0.1:10250, --confirm-timeout=0s]",
	} {
		if _, err := ParseConfig(map[string]string{SettingsKey: minimal + "extraArgs: " + arguments}); err != nil {
			t.Errorf("%s: %v", arguments, err)
		}
	}
}

func TestAFaultyConfigurationIsRefusedWithItsReason(t *testing.T) {
	for _, test := range []struct{ name, settings, job, want string }{
		{"no settings", "", "", "guarded needs a namespace"},
		{"a misspelt field", minimal + "maxParalel: 3", "", "maxParalel"},
		{"a field given twice", minimal + "image: other", "", "image"},
		{"an unknown mode", minimal + "mode: dry", "", `mode is "dry"`},
		{"no image", strings.Replace(minimal, "image: node:1", "", 1), "", "image is missing"},
		{"a Linux path", strings.Replace(minimal, `C:\k\kubelet-ca.crt`, "/etc/ca.crt", 1), "", "no absolute Windows path"},
		{"a path that cmd.exe would act on", strings.Replace(minimal, `C:\k\kubelet-ca.crt`, `C:\k\%TEMP%`, 1), "", "no absolute Windows path"},
		{"a source without a key", minimal + "extraSources: [{namespace: a, name: d}]", "", "extraSources[0] needs"},
		{"a source named twice", minimal + "extraSources: [{namespace: a, name: b, key: c}]", "", "a second time"},
		{"a negative limit", minimal + "maxParallel: -1", "", "maxParallel is negative"},
		{"looks without a pause", minimal + "lookAgain: 1s", "", "lookAgain is shorter"},
		{"no time for a Job", minimal + "deadline: 0s", "", "deadline is shorter"},
		{"a selector that is none", minimal + "nodeSelector: {'a b': c}", "", "nodeSelector"},
		{"an argument of the dispatcher's own", minimal + "extraArgs: [--sha256=00]", "", "set by the dispatcher"},
		{"an argument that would write to any path", minimal + `extraArgs: ['--termination-message=C:\k\x']`, "", "these are for you"},
		{"a misspelt argument", minimal + "extraArgs: [--pateince=1m]", "", "these are for you: --confirm, --confirm-timeout, --create-parent, --patience"},
		{"an argument in short form", minimal + "extraArgs: [-patience=1m]", "", "is no flag"},
		{"a word that belongs to no argument", minimal + "extraArgs: [--create-parent, 'true']", "", "is no flag"},
		{"an argument without its value", minimal + "extraArgs: [--create-parent, --patience]", "", "--patience needs a value"},
		{"an argument with another for its value", minimal + "extraArgs: [--confirm, --patience=1m]", "", "--confirm needs a value"},
		{"an argument whose value is no duration", minimal + "extraArgs: [--create-parent, --patience, banana]", "", `--patience: time: invalid duration "banana"`},
		{"an argument with a time that has passed", minimal + "extraArgs: [--confirm-timeout=-1m]", "", "--confirm-timeout: the duration is negative"},
		{"an argument whose value is no address", minimal + "extraArgs: [--confirm=localhost]", "", "--confirm: "},
		{"a switch that is neither on nor off", minimal + "extraArgs: [--create-parent=maybe]", "", "--create-parent: "},
		{"an argument that cmd.exe would act on", minimal + "extraArgs: ['a & b']", "", "would act on"},
		{"a template that is no YAML", minimal, "a: b: c", JobKey},
		{"a misspelt field in the template", minimal, "spec: {activeDeadlineSecond: 3}", "activeDeadlineSecond"},
		{"a second container in the template", minimal, "spec: {template: {spec: {containers: [{name: other, image: i}]}}}", "one container"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := ParseConfig(map[string]string{SettingsKey: test.settings, JobKey: test.job})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}
