package dispatcher

import (
	"hash/fnv"
	"strconv"
	"time"

	"kubelet-ca-courier/node"
)

const (
	// retryFirst is the wait after a first failure; it doubles with every further one.
	retryFirst = 30 * time.Second
	// retryLast is the longest wait.
	retryLast = time.Hour
	// finalAhead is how many doublings a failure is ahead that trying again at once cannot mend.
	finalAhead = 4
	// patience is how long a Job may be in flight before another may start in its stead.
	patience = time.Minute
)

// retryAfter returns how long to wait after the given attempt failed: growing, and up to a fifth longer by a share that
// differs from node to node, so that nodes which failed together do not come back together.
func retryAfter(name string, attempt int, exit *node.ExitCode) time.Duration {
	doublings := max(attempt, 1) - 1
	if exit != nil && exit.Final() {
		doublings += finalAhead
	}
	wait := retryFirst << min(doublings, 10)
	wait = min(wait, retryLast)
	return wait + time.Duration(share(name, strconv.Itoa(attempt))*float64(wait)/5)
}

// lookAfter returns how long after a delivery the node is looked at again: between half the interval and all of it. The
// share is the node's own, so that nodes which were delivered to together drift apart and stay so.
func lookAfter(name string, interval time.Duration) time.Duration {
	return interval - time.Duration(share(name, "look")*float64(interval)/2)
}

// share maps strings to [0, 1), evenly and always to the same value.
func share(parts ...string) float64 {
	h := fnv.New64a()
	for _, part := range parts {
		_, _ = h.Write([]byte(part)) // never fails
		_, _ = h.Write([]byte{0})
	}
	sum := h.Sum64() // FNV's high bits hardly change with the last characters; fold and mix them
	sum ^= sum >> 33
	sum *= 0xff51afd7ed558ccd
	sum ^= sum >> 33
	return float64(sum>>11) / (1 << 53)
}
