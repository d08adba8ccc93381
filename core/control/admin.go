package control

import (
	"fmt"
	"slices"
	"strings"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/pack"
	"rallypoint/internal/wording"
)

// maxAdminNames bounds the runs and nodes that an answer names.
const maxAdminNames = 20

// executeAdmin executes an administrator's request from an address. Every peer that
// reaches the port may ask: see docs/protocol.md.
func (s *Server) executeAdmin(f wire.Admin, from string) wire.AdminAnswer {
	op := known(int(f.Op), len(s.metrics.admin))
	if adminOpNames[op] == "" {
		op = 0
	}
	s.metrics.admin[op].Add(1)
	by := "admin"
	if f.By != "" {
		by += " " + f.By
	}
	if from != "" {
		by += " (" + from + ")"
	}
	by = pack.CutText(by, wire.MaxName)
	r := s.lookUp(f.RunID)
	if r == nil {
		return wire.AdminAnswer{Err: s.unknownRun(f.RunID)}
	}
	ev := f.Event(by, *stamp(s.clock.Now()))
	if ev == nil {
		return wire.AdminAnswer{Err: rendezvous.Errorf(rendezvous.CodeInvalid,
			"the control plane at %s does not know admin request %d: it is older than this command", s.Addr(), f.Op)}
	}
	done, err := r.applyAdmin(ev)
	return wire.AdminAnswer{Done: done, Err: err}
}

// unknownRun is the error of a request for a run that is not there; it names
// those that are.
func (s *Server) unknownRun(id string) *rendezvous.Error {
	names := s.runIDs()
	there := "it knows no run yet"
	if len(names) > 0 {
		there = "it knows " + nameSome(names)
	}
	return rendezvous.Errorf(rendezvous.CodeInvalid, "the control plane at %s (%s) knows no run %q: %s", s.Addr(), s.process, id, there)
}

// nameSome quotes the first few names.
func nameSome(names []string) string {
	quoted := make([]string, 0, maxAdminNames)
	for _, name := range names[:min(len(names), maxAdminNames)] {
		quoted = append(quoted, fmt.Sprintf("%q", name))
	}
	text := strings.Join(quoted, ", ")
	if more := len(names) - maxAdminNames; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// unusable returns why no request can be made of the run, nil if one can; mu is
// held.
func (r *run) unusable() *rendezvous.Error {
	if r.gone {
		return r.server.unknownRun(r.id)
	}
	return r.broken
}

// applyAdmin applies an administrator's event, and says what that did; the error says why it
// does nothing.
func (r *run) applyAdmin(ev rendezvous.Event) (done string, failed *rendezvous.Error) {
	r.mu.Lock()
	if err := r.unusable(); err != nil {
		r.mu.Unlock()
		return "", err
	}
	was := r.stats.census
	done, failed = Foresee(r.machine, ev)
	if failed != nil {
		r.mu.Unlock()
		return "", failed
	}
	e := r.submit(ev, nil)
	r.unlock()
	if err := e.wait(); err != nil {
		return "", err
	}
	closing, ok := ev.(rendezvous.CloseRun)
	if !ok {
		return done, nil
	}
	r.mu.Lock()
	defer r.unlock()
	if err := r.unusable(); err != nil {
		return "", err
	}
	return Closed(r.machine, was, closing.Stop), nil
}

// Closed says to an administrator what closing a run did, which was like that before.
func Closed(m *rendezvous.Machine, was rendezvous.Census, stop bool) string {
	now := m.Status()
	if m.Census().Ended == was.Ended {
		return fmt.Sprintf("nothing to do: run %q was closed already: it %s", now.RunID, closedText(now.Closed))
	}
	refused := was.Waiting + was.Spare + was.Rejoined
	running := was.Running + was.Unknown
	done := fmt.Sprintf("run %q is closed: no more nodes join it", now.RunID)
	if stop {
		done = fmt.Sprintf("run %q is closed as failed", now.RunID)
	}
	switch {
	case running > 0 && stop:
		done += fmt.Sprintf("; its %s of round %d must stop", wording.Count(running, "node", "nodes"), was.Round)
	case running > 0:
		done += fmt.Sprintf("; round %d goes on with %s", was.Round, wording.Count(running, "node", "nodes"))
	}
	if refused > 0 {
		done += fmt.Sprintf("; %s refused", wording.Count(refused, "node that waited was", "nodes that waited were"))
	}
	return done
}

// closedText says, behind "it", how a run was closed, by whom, when and why.
func closedText(c *rendezvous.ClosedStatus) string {
	text := c.Did + " by " + c.By
	if !c.At.IsZero() {
		text += " at " + c.At.UTC().Format("2006-01-02 15:04:05 MST")
	}
	if c.Reason != "" {
		text += ": " + c.Reason
	}
	return text
}

// findNode describes a live node; the error names those that there are.
func findNode(s *rendezvous.Status, node string) (string, *rendezvous.Error) {
	var alive []string
	cause := ""
	for _, m := range s.Members {
		switch {
		case m.Node == node && m.Session != "":
			return fmt.Sprintf("node %s, rank %d of round %d,", nameOf(m.Node, m.Label), m.Rank, s.Round), nil
		case m.Node == node && m.Cause != "":
			cause = fmt.Sprintf(": rank %d of round %d, %s", m.Rank, s.Round, m.Cause)
		case m.Session != "":
			alive = append(alive, m.Node)
		}
	}
	for _, j := range s.Waiting {
		if j.Node == node {
			return fmt.Sprintf("node %s, which waited for a place,", nameOf(j.Node, j.Label)), nil
		}
		if !j.Member {
			alive = append(alive, j.Node)
		}
	}
	for _, i := range s.Idle {
		if i.Node == node {
			return "node " + nameOf(i.Node, i.Label), nil
		}
		alive = append(alive, i.Node)
	}
	there := "none is"
	if len(alive) > 0 {
		slices.Sort(alive)
		there = "alive: " + nameSome(alive)
	}
	if cause != "" {
		return "", rendezvous.Errorf(rendezvous.CodeInvalid, "node %q of run %q is not alive any more%s; %s", node, s.RunID, cause, there)
	}
	return "", rendezvous.Errorf(rendezvous.CodeInvalid, "run %q has no live node %q; %s", s.RunID, node, there)
}

func nameOf(node, label string) string {
	if label != "" && label != node {
		return node + " (" + label + ")"
	}
	return node
}
