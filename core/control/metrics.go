package control

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/training"
)

// metrics are a server's running numbers, for /metrics. They only grow, and may be
// used by all goroutines at once.
type metrics struct {
	wire.Traffic
	accepted atomic.Uint64 // connections
	proven   atomic.Uint64 // connections whose peer has proven that it knows the token
	requests [len(opNames)]atomic.Uint64
	keyOps   [len(keyOpNames)]atomic.Uint64
	refused  [refusals]atomic.Uint64
	lost     [lostCauses]atomic.Uint64
	left     [len(leftNames)]atomic.Uint64   // nodes, by rendezvous.Ending
	closed   [len(closedNames)]atomic.Uint64 // runs, by rendezvous.ClosedStatus.How
	rounds   histogram
	admin    [len(adminOpNames)]atomic.Uint64
	stalls   atomic.Uint64

	trainingLost [training.Causes]atomic.Int64 // nanoseconds

	commits        histogram
	commitFailures atomic.Uint64
	committed      atomic.Uint64
}

// Names of what is counted by kind. The index in a list is the number on the wire. 0 stands for
// what this version does not know, and a number without a name is no request.
var (
	opNames = [...]string{"unknown", "join", "withdraw", "leave", "close", "finish", "linger", "key",
		rendezvous.OpAnnounceStop: "announce_stop", rendezvous.OpReportDirective: "report_directive",
		rendezvous.OpGiveDirective: "direct"}

	keyOpNames = [...]string{"unknown", "set", "get", "add", "compare_set", "append", "check", "wait", "delete", "count", "list",
		"multi_get", "multi_set", "queue_push", "queue_pop", "queue_len", "barrier", "cancel_wait"}
	adminOpNames = wire.AdminOpNames()
)

// known returns n if it has a name, else 0.
func known(n int, names []string) int {
	if n < 0 || n >= len(names) || names[n] == "" {
		return 0
	}
	return n
}

// request counts a request that a node made.
func (m *metrics) request(f wire.Request) {
	m.requests[known(int(f.Op), opNames[:])].Add(1)
	if k, ok := f.Event.(rendezvous.KeyRequest); ok {
		m.keyOps[known(int(k.Op), keyOpNames[:])].Add(1)
	}
}

// lostCause is why a node counts as lost.
type lostCause int

const (
	lostConnection   lostCause = iota // its connection ended and its grace passed
	lostLease                         // it was silent for longer than its lease
	lostEvicted                       // a person dropped it
	lostReplaced                      // it was started again
	lostUnresponsive                  // it does not acknowledge answers
	lostRestart                       // it did not come back after the control plane was restarted
	lostGaveUp                        // a member withdrew from a regroup
	lostLate                          // a live member did not rejoin within regroup_timeout
	lostCauses
)

var lostNames = [lostCauses]string{"connection", "lease", "evicted", "replaced", "unresponsive", "restart", "gave_up", "regroup_timeout"}

// causeOf is why an event has dropped a node.
func causeOf(ev rendezvous.Event, told *rendezvous.Error) lostCause {
	if strings.HasSuffix(told.Text, rendezvous.CauseRestart) {
		return lostRestart
	}
	if t, ok := ev.(rendezvous.TimerFired); ok && t.Timer.Kind == rendezvous.TimerDirective {
		return lostEvicted
	}
	switch ev.(type) {
	case rendezvous.LeaseExpired:
		return lostLease
	case rendezvous.Evict, rendezvous.Direct, rendezvous.ReportDirective, rendezvous.GiveDirective:
		return lostEvicted
	case rendezvous.Hello:
		return lostReplaced
	case rendezvous.Disconnect, rendezvous.TimerFired:
		return lostConnection
	}
	return lostUnresponsive
}

var (
	leftNames   = [...]string{"left", "succeeded", "failed"}
	closedNames = [...]string{"closed", "ended successfully", "failed", "stopped to be queued again"}
)

// roundBuckets are the upper bounds of the round histogram, in seconds: from the time of a quick
// join to beyond the default join_timeout.
var roundBuckets = [...]float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800}

// commitBuckets are the same for commits to the data directory: from a disk with
// a battery to one that is in trouble.
var commitBuckets = [...]float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}

// histogram counts durations in buckets.
type histogram struct {
	counts [len(roundBuckets) + 1]atomic.Uint64 // the last one: above all bounds
	sum    atomic.Int64                         // in nanoseconds
}

func (h *histogram) observe(d time.Duration, bounds *[len(roundBuckets)]float64) {
	i, _ := slices.BinarySearch(bounds[:], d.Seconds())
	h.counts[i].Add(1)
	h.sum.Add(int64(d))
}
