package control

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/logsampler"
	"rallypoint/internal/printable"
)

// refusal is why input was not accepted.
type refusal int

const (
	refusedNothing    refusal = iota // it ended as it should, or broke by itself
	refusedTCPStore                  // a PyTorch TCPStore client
	refusedTLS                       // TLS, where there is no token
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
	refusedHost                      // a browser asked for a name that is none of this machine's
	refusedStandby                   // a listener's address that is not the node's own, or a vote that is not
	refusedUser                      // another user's process, on a listener for this machine
	refusedHandshake                 // a TLS handshake that failed
	refusedHandshakes                // too many TLS connections that have proven nothing yet
	refusedDrained                   // the node was drained
	refusals
)

var refusalNames = [refusals]string{"", "tcpstore_client", "tls", "foreign", "malformed", "incomplete", "silent", "slow_reader",
	"version", "mismatch", "other_run", "node_in_use", "quota", "invalid_hello", "unknown_request", "http_overload", "authentication", "not_stored", "foreign_host", "standby", "other_user", "handshake", "handshake_overload", "drained"}

// maxRefusedNodes is how many refused nodes are named to those that wait, and maxRefusedText how
// many bytes each reason has.
const (
	maxRefusedNodes = 4
	maxRefusedText  = 512
)

// refusedNode is a node that a run lacks since it was refused.
type refusedNode struct {
	machine string // or its address, if it has not said who it is
	text    string
}

// noteRefused keeps why a node was refused, for the nodes of its run that wait: until a round is
// complete, or a node of that machine is admitted.
func (sc *serverConn) noteRefused(err error) {
	r := sc.server.lookUp(cmp.Or(sc.server.cfg.RunID, sc.only, sc.asked))
	code := rendezvous.CodeOf(err)
	if r == nil || code == rendezvous.CodeConnection || code == rendezvous.CodeClosed {
		return
	}
	machine, who := rendezvous.MachineOf(sc.node), "node "+printable.Text(rendezvous.MachineOf(sc.node))
	if machine == "" {
		machine = sc.from().String()
		who = "a process at " + machine
	}
	why := strings.TrimPrefix(err.Error(), errRefused.Error()+": ")
	why = strings.TrimPrefix(why, fmt.Sprintf("run %q: ", r.id))
	if rest, itself := strings.CutPrefix(why, who+" "); itself {
		why = "it " + rest
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.admittedLocked(machine)
	r.refused = append(r.refused, refusedNode{machine, who + " was refused: " + printable.Text(why[:min(len(why), maxRefusedText)])})
	r.refused = r.refused[max(0, len(r.refused)-maxRefusedNodes):]
}

// admittedLocked forgets that nodes of machines or addresses were refused.
func (r *run) admittedLocked(machines ...string) {
	r.refused = slices.DeleteFunc(r.refused, func(n refusedNode) bool { return slices.Contains(machines, n.machine) })
}

// withRefusedLocked adds the refused nodes to a text about a round that is being formed.
func (r *run) withRefusedLocked(text string) string {
	for _, n := range r.refused {
		text += "; " + n.text
	}
	return text
}

// refusedByReason is what was refused, by reason.
func (m *metrics) refusedByReason() map[string]uint64 {
	counts := map[string]uint64{}
	for why := refusedNothing + 1; why < refusals; why++ {
		counts[refusalNames[why]] = m.refused[why].Load()
	}
	return occurred(counts)
}

// occurred are the counts above 0; never nil.
func occurred(counts map[string]uint64) map[string]uint64 {
	some := maps.Clone(counts)
	maps.DeleteFunc(some, func(_ string, n uint64) bool { return n == 0 })
	if some == nil {
		some = map[string]uint64{}
	}
	return some
}

// sampleRefusal counts a refusal and reports whether to log it. A node that has
// said hello counts as another peer than its host.
func (s *Server) sampleRefusal(why refusal, from net.Addr, node string) bool {
	defer s.metrics.refused[why].Add(1)
	peer := cmp.Or(wire.AddrOf(from), from.String())
	if node != "" {
		peer += ", node " + node
	}
	return s.refusals.Note(refusalNames[why], peer)
}

// logSummary logs refusals that were not logged one by one.
func (s *Server) logSummary(sum logsampler.Summary) {
	s.log.Warn("refused more for the same reason", "reason", sum.Reason, "count", sum.Count, "last", sum.Last)
}
