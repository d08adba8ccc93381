package control

import (
	"cmp"
	"fmt"
	"strings"

	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/descriptors"
	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

// Quota limits the resources that one run, and all runs together, may use of a server. A zero
// field is the default.
type Quota struct {
	Nodes       int   // live nodes, spares too
	Connections int   // open connections of nodes
	Keys        int   // of the agents, in one round
	KeyBytes    int64 // of these keys and their values
	Bytes       int64 // that the run keeps, and that wait to be sent to its nodes

	TotalBytes     int64 // the same of all runs
	RunsPerAddress int   // that nodes of one address have begun and that are remembered
}

// DefaultQuota is far above what a job needs.
var DefaultQuota = Quota{
	Nodes:       1 << 17,
	Connections: 1 << 17,
	Keys:        rendezvous.DefaultMaxKeys,
	KeyBytes:    rendezvous.DefaultMaxKeyBytes,
	Bytes:       rendezvous.DefaultMaxBytes,

	TotalBytes:     2 << 30,
	RunsPerAddress: 1 << 12,
}

func (q Quota) withDefaults() Quota {
	d := DefaultQuota
	return Quota{
		Nodes: cmp.Or(q.Nodes, d.Nodes), Connections: cmp.Or(q.Connections, d.Connections), Keys: cmp.Or(q.Keys, d.Keys), KeyBytes: cmp.Or(q.KeyBytes, d.KeyBytes),
		Bytes: cmp.Or(q.Bytes, d.Bytes), TotalBytes: cmp.Or(q.TotalBytes, d.TotalBytes), RunsPerAddress: cmp.Or(q.RunsPerAddress, d.RunsPerAddress),
	}
}

// limits are the limits that the machine itself enforces.
func (q Quota) limits() rendezvous.Limits {
	return rendezvous.Limits{Keys: store.Limits{MaxBytes: q.KeyBytes, MaxEntries: q.Keys}, Bytes: q.Bytes}
}

// overQuotaLocked refuses a hello that the run has no room for.
func (r *run) overQuotaLocked(h rendezvous.Hello) *rendezvous.Error {
	if r.broken != nil {
		return r.broken
	}
	q := r.server.cfg.Quota
	connections := len(r.conns)
	if r.conns[h.Session] != nil {
		connections-- // that one ends
	}
	if connections+r.hellos >= q.Connections {
		return r.noRoom("connections", "--max-connections", q.Connections)
	}
	if r.machine.Has(h.Session) {
		return nil
	}
	if world := max(h.LastRound.World, h.LastRound.Facts.World); world > q.Nodes {
		return rendezvous.Errorf(rendezvous.CodeTooLarge,
			"run %q: node %s reports a round of %d nodes, and at most %d are allowed on the control plane at %s: start `rallypoint serve` with a higher --max-nodes",
			r.id, printable.Text(h.Node), world, q.Nodes, r.server.Addr())
	}
	if r.machine.HasNode(h.Node) {
		return nil
	}
	most, flag := q.Nodes, "--max-nodes"
	if q.Connections < most {
		most, flag = q.Connections, "--max-connections"
	}
	if least := h.Policy.Min; least > most {
		return rendezvous.Errorf(rendezvous.CodeTooLarge,
			"run %q: node %s wants at least %s, and a job may have at most %d on the control plane at %s: give it a smaller --nnodes, or start `rallypoint serve` with a higher %s",
			r.id, printable.Text(rendezvous.MachineOf(h.Node)), wording.Count(least, "node", "nodes"), most, r.server.Addr(), flag)
	}
	if r.machine.Live()+r.hellos >= q.Nodes {
		return r.noRoom("nodes", "--max-nodes", q.Nodes)
	}
	if text := r.overBytesLocked(rendezvous.CostOfHello(h)); text != "" {
		return rendezvous.Errorf(rendezvous.CodeTooLarge, "%s", text)
	}
	return nil
}

// runCost is about the memory of a run without its history and what its machine counts.
const runCost = 8 << 10

// accountLocked adds the run's memory to the server's sum.
func (r *run) accountLocked() {
	kept := int64(0)
	if !r.gone {
		kept = runCost + int64(r.stats.changelog.bytes) + r.machine.Usage().Total()
	}
	r.server.kept.Add(kept - r.kept)
	r.kept = kept
	r.awaitLocked()
}

// awaitLocked counts the nodes that the run's next round may have to the server's sum, and warns
// once where their connections will not fit.
func (r *run) awaitLocked() {
	awaited, s := int64(0), r.server
	if !r.gone && r.machine.Live() > 0 {
		p := r.machine.Policy()
		awaited = int64(min(cmp.Or(p.Target, p.Max), s.cfg.Quota.Nodes)) // more are refused
	}
	grown := awaited > r.awaited
	sum := s.awaited.Add(awaited - r.awaited)
	r.awaited = awaited
	if !grown {
		return
	}
	if text := descriptors.Shortage("this control plane", int(sum)); text != "" && !s.short.Swap(true) {
		r.warnings = append(r.warnings, text)
	}
}

// keptBytes is the memory of all runs, including messages to and from their nodes.
func (s *Server) keptBytes() int64 { return s.kept.Load() + s.unsent.Load() + s.arriving.Load() }

// keptBytesLocked is the same of one run.
func (r *run) keptBytesLocked() int64 { return r.kept + r.unsent.Load() + r.arriving.Load() }

// overBytesLocked says why the run must not use that many more bytes; "" if it may. When all runs
// together have reached their limit, those with more than an equal share are refused.
func (r *run) overBytesLocked(more int64) string {
	s, q := r.server, r.server.cfg.Quota
	own := r.keptBytesLocked()
	if own+more > q.Bytes {
		return fmt.Sprintf("run %q keeps %s on the control plane at %s, at most %d bytes are allowed for one job: it has no room for %d more; "+
			"the agents of a job need little, so look what fills it, or start `rallypoint serve` with a higher --max-bytes", r.id, r.describeKept(), s.Addr(), q.Bytes, more)
	}
	total, runs := s.keptBytes(), max(1, s.runCount.Load())
	if total+more > q.TotalBytes && own+more > q.TotalBytes/runs {
		return fmt.Sprintf("run %q keeps %s on the control plane at %s, where %d jobs keep %d bytes and at most %d are allowed together: it has no room for %d more, since an equal share is %d; "+
			"look what fills it, end jobs that are not needed, or start `rallypoint serve` with a higher --max-total-bytes",
			r.id, r.describeKept(), s.Addr(), runs, total, q.TotalBytes, more, q.TotalBytes/runs)
	}
	return ""
}

// describeKept says what the run keeps, and for what.
func (r *run) describeKept() string {
	u := r.machine.Usage()
	return fmt.Sprintf("%d bytes (its agents' keys %d, answers that its nodes have not acknowledged %d, waits for keys %d, what waits to be sent %d, what has come in part %d)",
		r.keptBytesLocked(), u.Keys, u.Answers, u.Waits, r.unsent.Load(), r.arriving.Load())
}

// answerBytesLocked is how much the answer to a request adds to the bytes that wait for a commit.
func (r *run) answerBytesLocked(ev rendezvous.Event) int {
	if r.broken != nil {
		return 0
	}
	defer r.recoverRunLocked()
	return int(r.machine.AnswerBytes(ev))
}

// withinQuotaLocked returns a request, or if there is no room for it and its answer the refusal that
// takes its place.
func (r *run) withinQuotaLocked(ev rendezvous.Event) (within rendezvous.Event) {
	k, ok := ev.(rendezvous.KeyRequest)
	if within = ev; !ok || r.broken != nil || !rendezvous.Grows(k) {
		return within
	}
	defer r.recoverRunLocked()
	answer := r.machine.AnswerBytes(ev)
	if r.overBytesLocked(answer) == "" {
		return within
	}
	if text := r.overBytesLocked(answer - r.machine.FreedBy(k.Request)); text != "" {
		r.server.metrics.refused[refusedQuota].Add(1)
		return rendezvous.Refused(k, text)
	}
	return within
}

func (r *run) noRoom(what, flag string, most int) *rendezvous.Error {
	if most == 1 {
		what = strings.TrimSuffix(what, "s")
	}
	return rendezvous.Errorf(rendezvous.CodeTooLarge,
		"run %q has %d %s, which is its quota on the control plane at %s: stop nodes that are not needed, or start `rallypoint serve` with a higher %s",
		r.id, most, what, r.server.Addr(), flag)
}
