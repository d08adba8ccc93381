package control

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"rallypoint/core/rendezvous"
)

// refusal is why input was not accepted.
type refusal int

const (
	refusedNothing    refusal = iota // it ended as it should, or broke by itself
	refusedTCPStore                  // a PyTorch TCPStore client
	refusedTLS                       // TLS, which is not supported yet
	refusedForeign                   // none of the protocols of this port
	refusedMalformed                 // our protocol, but wrong
	refusedIncomplete                // the connection ended before its hello was complete
	refusedSilent                    // it did not say who it is in time
	refusedSlow                      // it does not read what is sent to it
	refusedVersion                   // no common protocol version
	refusedMismatch                  // settings differ from the run's
	refusedOtherRun                  // the port serves another run
	refusedNodeInUse                 // the node id is in use
	refusedQuota                     // the server remembers too many runs, or the run has too many nodes
	refusedHello                     // a hello with another fault
	refusedRequest                   // a request that this version does not know
	refusedHTTP                      // too many HTTP connections
	refusedAuth                      // it did not prove that it knows the token
	refusedUnstored                  // the data directory cannot be written
	refusals
)

var refusalNames = [refusals]string{"", "tcpstore_client", "tls", "foreign", "malformed", "incomplete", "silent", "slow_reader",
	"version", "mismatch", "other_run", "node_in_use", "quota", "invalid_hello", "unknown_request", "http_overload", "authentication", "not_stored"}

// refusalOf tells why a connection that has ended with err was refused; greeted
// tells that its hello was accepted.
func refusalOf(err error, greeted bool) refusal {
	var e *rendezvous.Error
	switch {
	case err == nil, err == io.EOF:
		return refusedNothing
	case errors.Is(err, errTCPStore):
		return refusedTCPStore
	case errors.Is(err, errTLS):
		return refusedTLS
	case errors.Is(err, errForeign):
		return refusedForeign
	case errors.Is(err, errMalformed):
		return refusedMalformed
	case errors.Is(err, errSilent):
		return refusedSilent
	case errors.Is(err, errSlow):
		return refusedSlow
	case errors.Is(err, errCrowded):
		return refusedHTTP
	case errors.Is(err, errNotStored):
		return refusedUnstored
	case errors.Is(err, errRefused) && errors.As(err, &e):
		return refusalOfHello(e.Code)
	case !greeted && errors.Is(err, io.ErrUnexpectedEOF):
		return refusedIncomplete
	}
	return refusedNothing
}

func refusalOfHello(c rendezvous.Code) refusal {
	switch c {
	case rendezvous.CodeAuth:
		return refusedAuth
	case rendezvous.CodeState:
		return refusedVersion
	case rendezvous.CodeMismatch:
		return refusedMismatch
	case rendezvous.CodeTenant:
		return refusedOtherRun
	case rendezvous.CodeNodeInUse:
		return refusedNodeInUse
	case rendezvous.CodeTooLarge:
		return refusedQuota
	case rendezvous.CodeConnection:
		return refusedUnstored
	}
	return refusedHello
}

// Limits of remembering what was logged about refused connections.
const (
	repeatAfter = time.Minute
	maxRepeats  = 1024
)

// repeats keeps a peer that is refused and tries again from filling the log: one
// line a minute for each address and reason.
type repeats struct {
	mu   sync.Mutex
	seen map[repeat]repeated
}

type repeat struct {
	host string
	why  refusal
	node string
}

type repeated struct {
	logged time.Time
	since  int // refusals that were not logged
}

// ask reports whether a refusal is to be logged, and how many like it were not
// logged since the last one.
func (r *repeats) ask(now time.Time, from net.Addr, why refusal, node string) (logged bool, skipped int) {
	host := addrOf(from)
	if host == "" {
		return true, 0
	}
	key := repeat{host, why, node}
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.seen[key]
	if ok && now.Sub(last.logged) < repeatAfter {
		last.since++
		r.seen[key] = last
		return false, 0
	}
	if r.seen == nil || !ok && len(r.seen) >= maxRepeats {
		r.seen = map[repeat]repeated{}
	}
	r.seen[key] = repeated{logged: now}
	return true, last.since
}
