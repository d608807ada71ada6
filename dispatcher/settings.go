package dispatcher

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// Keys of the configuration's ConfigMap.
const (
	// SettingsKey holds [Settings].
	SettingsKey = "config.yaml"
	// JobKey holds a strategic-merge patch over the Job that [NewTarget] builds.
	JobKey = "job.yaml"
)

// Mode says whether nodes are changed or only looked at.
type Mode string

const (
	// Enforce makes every node's file hold the bundle.
	Enforce Mode = "enforce"
	// Observe looks and reports, and writes nothing on a node.
	Observe Mode = "observe"
)

// Ref names one key of one ConfigMap.
type Ref struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Key       string `json:"key"`
}

// String returns namespace/name/key.
func (r Ref) String() string { return r.Namespace + "/" + r.Name + "/" + r.Key }

// Source is a further ConfigMap whose CAs nodes must trust.
type Source struct {
	Ref `json:",inline"`
	// Required holds the first delivery until the source exists and is good. Once it has contributed, its absence
	// holds nothing: nodes keep what it contributed.
	Required bool `json:"required,omitempty"`
}

// Settings is what an admin writes into config.yaml.
type Settings struct {
	// Guarded is the ConfigMap that the gate protects.
	Guarded Ref `json:"guarded"`
	// ExtraSources are delivered together with it.
	ExtraSources []Source `json:"extraSources,omitempty"`
	// Mode is enforce or observe; enforce unless said otherwise.
	Mode Mode `json:"mode,omitempty"`
	// Destination is the kubelet's client-CA file on the node.
	Destination string `json:"destination"`
	// NodeSelector narrows down the Windows nodes that are served; empty means all of them.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// MaxParallel is the most Jobs in flight at once; 0 sets no limit beyond the slow start.
	MaxParallel int `json:"maxParallel,omitempty"`
	// SlowStart keeps the Jobs in flight at no more than one and those that succeeded; on unless said otherwise.
	SlowStart *bool `json:"slowStart,omitempty"`
	// Image holds the landing's program.
	Image string `json:"image"`
	// ExtraArgs go before the arguments that the dispatcher gives to the landing.
	ExtraArgs []string `json:"extraArgs,omitempty"`
	// LookAgain is the longest time between two looks at a node; a day unless said otherwise.
	LookAgain *metav1.Duration `json:"lookAgain,omitempty"`
	// Deadline ends a Job that does not come to an end, pulls of its image included; ten minutes unless said otherwise.
	Deadline *metav1.Duration `json:"deadline,omitempty"`
}

// Defaults of settings that may be left out.
const (
	defaultLookAgain = 24 * time.Hour
	defaultDeadline  = 10 * time.Minute
)

// windowsLabels is what every node that is served has.
var windowsLabels = labels.Set{"kubernetes.io/os": "windows"}

// Selector returns the nodes that the settings cover.
func (s Settings) Selector() labels.Selector {
	return labels.SelectorFromSet(labels.Merge(windowsLabels, s.NodeSelector))
}

// Refs returns the guarded ConfigMap and all extra sources, in order.
func (s Settings) Refs() []Ref {
	refs := []Ref{s.Guarded}
	for _, source := range s.ExtraSources {
		refs = append(refs, source.Ref)
	}
	return refs
}

// Config is a configuration that was read and found good.
type Config struct {
	Settings
	// Patch is the strategic-merge patch over the Job, in JSON.
	Patch []byte
}

// ParseConfig reads the data of the configuration's ConfigMap. Fields that do not exist are refused, so that a misspelt
// one does not pass for its default.
func ParseConfig(data map[string]string) (Config, error) {
	text, ok := data[SettingsKey]
	if !ok {
		return Config{}, fmt.Errorf("the key %s is missing", SettingsKey)
	}
	var c Config
	if err := yaml.UnmarshalStrict([]byte(text), &c.Settings); err != nil {
		return Config{}, fmt.Errorf("%s: %w", SettingsKey, err)
	}
	c.complete()
	if err := c.validate(); err != nil {
		return Config{}, fmt.Errorf("%s: %w", SettingsKey, err)
	}
	patch, err := yaml.YAMLToJSONStrict([]byte(data[JobKey]))
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", JobKey, err)
	}
	if string(patch) == "null" {
		patch = []byte("{}")
	}
	c.Patch = patch
	if _, err := NewTarget(Snapshot{}, c, JobsNamespace); err != nil {
		return Config{}, err
	}
	return c, nil
}

// complete fills in what was left out.
func (s *Settings) complete() {
	if s.Mode == "" {
		s.Mode = Enforce
	}
	if s.SlowStart == nil {
		on := true
		s.SlowStart = &on
	}
	if s.LookAgain == nil {
		s.LookAgain = &metav1.Duration{Duration: defaultLookAgain}
	}
	if s.Deadline == nil {
		s.Deadline = &metav1.Duration{Duration: defaultDeadline}
	}
}

// validate reports everything that is wrong at once.
func (s *Settings) validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	seen := map[Ref]bool{}
	for i, ref := range s.Refs() {
		field := "guarded"
		if i > 0 {
			field = fmt.Sprintf("extraSources[%d]", i-1)
		}
		if ref.Namespace == "" || ref.Name == "" || ref.Key == "" {
			fault("%s needs a namespace, a name and a key", field)
		}
		if seen[ref] {
			fault("%s names %s a second time", field, ref)
		}
		seen[ref] = true
	}
	if s.Mode != Enforce && s.Mode != Observe {
		fault("mode is %q; it must be %s or %s", s.Mode, Enforce, Observe)
	}
	if s.Image == "" {
		fault("image is missing")
	}
	if s.MaxParallel < 0 {
		fault("maxParallel is negative")
	}
	if s.LookAgain.Duration < time.Minute {
		fault("lookAgain is shorter than a minute")
	}
	if s.Deadline.Duration < time.Second {
		fault("deadline is shorter than a second")
	}
	for key, value := range s.NodeSelector {
		faults := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...)
		for _, f := range faults {
			fault("nodeSelector %q: %s", key, f)
		}
	}
	errs = append(errs, checkPath(s.Destination), checkArgs(s.ExtraArgs))
	return errors.Join(errs...)
}

// windowsPath is a path with a drive whose characters mean nothing to cmd.exe, through which the landing may be started. No
// name in it ends in a dot or a space: Windows drops those, and with ".." the path would lead elsewhere than it says.
var windowsPath = regexp.MustCompile(`^[A-Za-z]:(\\[A-Za-z0-9 ._-]*[A-Za-z0-9_-])+$`)

func checkPath(path string) error {
	if path == "" {
		return errors.New("destination is missing")
	}
	if !windowsPath.MatchString(path) {
		return fmt.Errorf(`destination %q is no absolute Windows path such as C:\k\kubelet-ca.crt`, path)
	}
	return nil
}

// safeArg is what cmd.exe passes on unchanged.
var safeArg = regexp.MustCompile(`^[A-Za-z0-9 ._:\\=-]+$`)

// extraFlags are the landing's flags that extraArgs may hold, whether each can do without a value, and what reads it. The admission policy of the Jobs
// knows these as well. Left out is what the dispatcher sets itself, and --termination-message, which writes to any path.
var extraFlags = map[string]struct {
	isSwitch bool
	check    func(value string) error
}{
	"create-parent":   {true, func(value string) error { _, err := strconv.ParseBool(value); return err }},
	"confirm":         {false, func(value string) error { _, err := netip.ParseAddrPort(value); return err }},
	"confirm-timeout": {false, checkWait},
	"patience":        {false, checkWait},
}

// checkWait refuses what is no duration, or a negative one.
func checkWait(value string) error {
	d, err := time.ParseDuration(value)
	if err == nil && d < 0 {
		return errors.New("the duration is negative")
	}
	return err
}

// checkArgs refuses arguments that are not an admin's to give, and what cmd.exe would act on.
func checkArgs(args []string) error {
	for _, arg := range args {
		if !safeArg.MatchString(arg) {
			return fmt.Errorf("extraArgs: %q holds a character that a Windows command line would act on", arg)
		}
	}
	for len(args) > 0 {
		flag, isFlag := strings.CutPrefix(args[0], "--")
		name, value, assigned := strings.Cut(flag, "=")
		known, ok := extraFlags[name]
		if !isFlag || !ok {
			return fmt.Errorf("extraArgs: %s is set by the dispatcher, or is no flag; these are for you: --%s", args[0],
				strings.Join(slices.Sorted(maps.Keys(extraFlags)), ", --"))
		}
		args = args[1:]
		if !assigned && known.isSwitch {
			continue
		}
		if !assigned {
			if len(args) == 0 || strings.HasPrefix(args[0], "-") {
				return fmt.Errorf("extraArgs: --%s needs a value", name)
			}
			value, args = args[0], args[1:]
		}
		if err := known.check(value); err != nil {
			return fmt.Errorf("extraArgs: --%s: %w", name, err)
		}
	}
	return nil
}

// digest returns a short hash over what is given, as JSON.
func digest(parts ...any) string {
	data, err := json.Marshal(parts)
	if err != nil {
		panic(fmt.Sprintf("only plain API types are hashed: %v", err))
	}
	return shortSum(data)
}
