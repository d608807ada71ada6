package decade

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// history is what happens to a cluster from outside, and what kind of cluster it is.
type history struct {
	seed    uint64
	length  time.Duration
	verbose bool

	rotationDay time.Duration // what the operator takes for a day; shorter in short-rotation testing
	refresh     float64       // days after which a signer is replaced
	csrSigner   bool          // the managed ConfigMap has a CA that is replaced every 30 days
	lookAgain   time.Duration
	confirm     bool // landings ask the kubelet
	nodes       int

	operatorClock, courierClock time.Duration // how far clocks are off
	replicaClocks               []time.Duration

	acts []act
}

// act is one thing that happens.
type act struct {
	at   time.Duration
	what kind
	node int
	d    time.Duration
	n    int
}

// String is the act as a line of a printed history.
func (a act) String() string {
	text := fmt.Sprintf("%s  %s", birth().Add(a.at).Format("2006-01-02 15:04:05"), a.what)
	switch {
	case a.what == mistake:
		text += " (" + mistakes()[a.n%len(mistakes())].name + ")"
	case nodal[a.what]:
		text += fmt.Sprintf(" win-%d", a.node)
	}
	if a.d > 0 {
		text += " for " + a.d.Round(time.Second).String()
	}
	return text
}

// kind is what kind of thing happens.
type kind string

// What can happen.
const (
	nodeJoins        kind = "a node joins"
	nodeLeaves       kind = "a node leaves:"
	nodeReplaced     kind = "a node is replaced by one of the same name:"
	reboot           kind = "a node reboots:"
	partition        kind = "a node cannot be reached:"
	powerless        kind = "a node is down:"
	kubeletRestarts  kind = "the kubelet restarts on"
	replicaAway      kind = "one replica of the webhook is away"
	webhookAway      kind = "the webhook is away"
	gateRemoved      kind = "the webhook's configuration is removed"
	dispatcherAway   kind = "the dispatcher is away"
	dispatcherCrash  kind = "the dispatcher crashes in one of its next writes"
	apiAway          kind = "the API server is away"
	clusterOff       kind = "the whole cluster is off"
	forcedRotation   kind = "an administrator forces a rotation"
	breakGlass       kind = "an administrator replaces the signer and drops the old ones by break-glass"
	mistake          kind = "an administrator makes a mistake"
	metadata         kind = "somebody edits the guarded ConfigMap's metadata"
	diskFull         kind = "the disk is full on"
	fileBusy         kind = "somebody holds the file open on"
	landingKilled    kind = "the next landing is killed on"
	secondWriter     kind = "somebody else writes the managed bundle on"
	vandal           kind = "somebody writes rubbish into the file on"
	managedGone      kind = "the managed ConfigMap is gone"
	managedBroken    kind = "the managed ConfigMap is broken"
	observeMode      kind = "courier only observes"
	badConfiguration kind = "courier's configuration is broken"
	newImage         kind = "courier gets another image"
	jobDeleted       kind = "somebody deletes the Job of"
	snapshotsDeleted kind = "somebody deletes all snapshots"
	jobsEmptied      kind = "somebody deletes everything in the Jobs' namespace"
)

// nodal are the kinds that name a node.
var nodal = map[kind]bool{
	nodeLeaves: true, nodeReplaced: true, reboot: true, partition: true, powerless: true, kubeletRestarts: true, diskFull: true,
	fileBusy: true, landingKilled: true, secondWriter: true, vandal: true, jobDeleted: true,
}

// frequency is how often something happens in a year, and how long it takes.
type frequency struct {
	what     kind
	perYear  float64
	from, to time.Duration
}

func frequencies() []frequency {
	return []frequency{
		{nodeJoins, 1.5, 0, 0}, {nodeLeaves, 1, 0, 0}, {nodeReplaced, 1, 0, 0},
		{reboot, 6, 2 * time.Minute, 20 * time.Minute}, {partition, 6, time.Minute, 30 * day}, {powerless, 4, 10 * time.Minute, 60 * day},
		{kubeletRestarts, 4, 0, 0},
		{replicaAway, 6, time.Minute, 5 * day}, {webhookAway, 4, time.Minute, 2 * day}, {gateRemoved, 0.5, time.Hour, 5 * day},
		{dispatcherAway, 4, time.Minute, 4 * day}, {dispatcherCrash, 12, 0, 0},
		{apiAway, 6, 5 * time.Second, 6 * time.Hour}, {clusterOff, 0.2, time.Hour, 500 * day},
		{forcedRotation, 1, 0, 0}, {breakGlass, 0.5, 10 * time.Minute, 60 * time.Hour},
		{mistake, 14, 0, 0}, {metadata, 10, 0, 0},
		{diskFull, 3, time.Minute, 3 * day}, {fileBusy, 4, time.Minute, 6 * time.Hour}, {landingKilled, 24, 0, 0},
		{secondWriter, 10, 0, 0}, {vandal, 1, 0, 0},
		{managedGone, 0.4, time.Minute, 5 * day}, {managedBroken, 0.4, time.Minute, 5 * day},
		{observeMode, 0.4, time.Hour, 10 * day}, {badConfiguration, 1, time.Minute, 2 * day}, {newImage, 3, 0, 0},
		{jobDeleted, 6, 0, 0}, {snapshotsDeleted, 0.5, 0, 0}, {jobsEmptied, 0.3, 0, 0},
	}
}

// kindsOfCluster are the kinds of rotation that seeds take in turn.
var kindsOfCluster = []string{"yearly signers", "monthly signers", "yearly signers, daily looks", "short-rotation testing"}

// makeHistory makes the history of a seed.
func makeHistory(seed uint64, length time.Duration) history {
	random := rand.New(rand.NewPCG(seed, 0x6b756265))
	minutes := func(most int) time.Duration { return time.Duration(random.IntN(2*most*60+1)-most*60) * time.Second }
	h := history{
		seed: seed, length: length, rotationDay: day, refresh: 292, lookAgain: 10 * day,
		csrSigner: random.IntN(3) == 0, confirm: random.IntN(8) == 0, nodes: 2 + random.IntN(4),
		operatorClock: minutes(2), courierClock: minutes(2), replicaClocks: []time.Duration{minutes(2), minutes(2)},
	}
	switch seed % uint64(len(kindsOfCluster)) {
	case 1:
		h.refresh = 30
	case 2:
		h.lookAgain, h.nodes = day, 2
	case 3:
		h.rotationDay, h.lookAgain, h.length = 2*time.Hour, 5*day, length/10
	}
	for _, f := range frequencies() {
		// The gaps between two are distributed exponentially, and durations evenly over orders of magnitude.
		for at := time.Duration(0); ; {
			gap := time.Duration(random.ExpFloat64() / f.perYear * float64(365*day))
			if at += max(gap, time.Minute); at >= h.length || gap < 0 {
				break
			}
			a := act{at: at.Truncate(time.Second), what: f.what, node: random.IntN(12), n: random.IntN(1 << 20)}
			if f.to > 0 {
				a.d = time.Duration(float64(f.from) * math.Pow(float64(f.to)/float64(f.from), random.Float64())).Truncate(time.Second)
			}
			h.acts = append(h.acts, a)
		}
	}
	slices.SortStableFunc(h.acts, func(a, b act) int { return int(a.at - b.at) })
	return h
}

// shortest leaves out of a history that breaks a promise whatever it breaks the same promise without: half of what
// remains at a time, then quarters, and so on (delta debugging).
func shortest(h history, broken *violation) (history, *world) {
	h.verbose = true
	breaks := func(acts []act) *world {
		h.acts = acts
		if w := live(h); w.broken != nil && w.broken.promise == broken.promise {
			return w
		}
		return nil
	}
	h.length = broken.at.Sub(birth()) + time.Second
	acts := slices.DeleteFunc(slices.Clone(h.acts), func(a act) bool { return a.at > h.length })
	last := breaks(acts)
	for size := (len(acts) + 1) / 2; size > 0 && last != nil; {
		smaller := false
		for i := 0; i < len(acts); {
			without := slices.Delete(slices.Clone(acts), i, min(i+size, len(acts)))
			if w := breaks(without); w != nil {
				acts, last, smaller = without, w, true
			} else {
				i += size
			}
		}
		if size == 1 && !smaller {
			break
		}
		size = max(size/2, min(size-1, 1))
		if size == 0 {
			size = 1
		}
	}
	h.acts = acts
	return h, last
}

// String prints a history as a person reads it.
func (h history) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "seed %d: %s, %d nodes, looks every %s, confirm %v, csr signer %v; clocks off: operator %s, dispatcher %s, webhook %s\n",
		h.seed, kindsOfCluster[h.seed%uint64(len(kindsOfCluster))], h.nodes, h.lookAgain, h.confirm, h.csrSigner, h.operatorClock, h.courierClock, h.replicaClocks)
	for _, a := range h.acts {
		fmt.Fprintln(&text, " ", a)
	}
	return text.String()
}
