package rendezvous

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"rallypoint/internal/pack"
)

// DirectiveKind is what a directive asks for; the numbers are append-only. 1, 3 and 4 are
// kept for save, scale and stop.
type DirectiveKind int

// DirectiveDrain asks the named nodes to leave the run at the deadline; they are not
// admitted again for a time.
const DirectiveDrain DirectiveKind = 2

// Bounds of directives.
const (
	MaxDirectives     = 64 // that stand at one time, and ended ones whose ids are remembered
	MaxDirectiveNodes = 1024
)

// Direct gives a directive to a run (docs/decisions/0046). It is known by its id: one that
// comes again changes nothing, also after it has ended.
type Direct struct {
	ID     string
	Kind   DirectiveKind
	Nodes  []string      // ids of those that it is about
	Within time.Duration // until its deadline, from when it is applied; 0: at once
	For    time.Duration // how long a drained node is not admitted; 0: until Undrain
	By     string
	Reason string
	At     time.Time // wall clock, for display only
}

// CancelDirective takes back a directive whose deadline has not come.
type CancelDirective struct {
	ID     string
	By     string
	Reason string
}

// Undrain admits a drained node again.
type Undrain struct {
	Node   string
	By     string
	Reason string
}

func (Direct) event()          {}
func (CancelDirective) event() {}
func (Undrain) event()         {}

// DirectiveNotice is the directive as a node sees it: the one that was given last of those
// that stand.
type DirectiveNotice struct {
	ID     string        // "": none stands
	Kind   DirectiveKind //
	Named  bool          // it is about this node
	Text   string        // what it asks for, by whom, why; human-readable
	Within time.Duration // from when it was given to its deadline
}

// drained is a node that is not admitted.
type drained struct{ by, reason string }

// describe says what a directive asks for.
func (d *Direct) describe() string {
	names := d.Nodes
	more := ""
	if len(names) > maxNames {
		names, more = names[:maxNames], fmt.Sprintf(" and %d more", len(d.Nodes)-maxNames)
	}
	text := "drain " + strings.Join(names, ", ") + more
	if d.Within > 0 {
		text += fmt.Sprintf(" within %v", d.Within)
	}
	return text + ", asked for by " + d.By + ": " + d.Reason
}

// direct records a directive and sets its deadline.
func (m *Machine) direct(ev Direct) {
	ev.By, ev.Reason = Printable(ev.By), Printable(ev.Reason)
	known := slices.Contains(m.directed, ev.ID) || m.directive(ev.ID) >= 0
	if known || ev.ID == "" || ev.Kind != DirectiveDrain || ev.Within < 0 || ev.For < 0 || m.closed != nil || len(m.directives) >= MaxDirectives {
		return
	}
	ev.Nodes = slices.Clone(ev.Nodes)
	for i, node := range ev.Nodes {
		ev.Nodes[i] = Printable(node)
	}
	m.directives = append(m.directives, ev)
	m.note("directive %s: %s", ev.ID, ev.describe())
	if ev.Within == 0 {
		m.deadlinePassed(ev.ID)
		return
	}
	m.armTimer(directiveTimer(ev.ID), ev.Within)
}

func directiveTimer(id string) Timer {
	return Timer{Kind: TimerDirective, Session: SessionID(id)}
}

func drainedTimer(node string) Timer { return Timer{Kind: TimerDrained, Session: SessionID(node)} }

// directive is where a standing directive is in the list; -1: it does not stand.
func (m *Machine) directive(id string) int {
	return slices.IndexFunc(m.directives, func(d Direct) bool { return d.ID == id })
}

// endDirective takes a directive out of those that stand, and remembers its id.
func (m *Machine) endDirective(at int) Direct {
	d := m.directives[at]
	m.stopTimer(directiveTimer(d.ID))
	m.directives = slices.Delete(m.directives, at, at+1)
	m.directed = append(m.directed, d.ID)
	if extra := len(m.directed) - MaxDirectives; extra > 0 {
		m.directed = slices.Clone(m.directed[extra:])
	}
	return d
}

// deadlinePassed carries a directive out.
func (m *Machine) deadlinePassed(id string) {
	at := m.directive(id)
	if at < 0 {
		return
	}
	d := m.endDirective(at)
	for _, node := range d.Nodes {
		if m.drained[node] == nil {
			m.drained[node] = &drained{by: d.By, reason: d.Reason}
		}
		m.stopTimer(drainedTimer(node))
		if d.For > 0 {
			m.armTimer(drainedTimer(node), d.For)
		}
		if n := m.nodes[node]; n != nil {
			m.lose(n, "drained by "+d.By+": "+d.Reason)
		}
	}
}

// endDirectives ends those that stand, because the run has ended.
func (m *Machine) endDirectives() {
	for len(m.directives) > 0 {
		m.endDirective(0)
	}
}

func (m *Machine) cancelDirective(ev CancelDirective) {
	if at := m.directive(ev.ID); at >= 0 {
		m.endDirective(at)
		m.note("directive %s was canceled by %s: %s", ev.ID, Printable(ev.By), Printable(ev.Reason))
	}
}

func (m *Machine) undrain(node, by string) {
	if m.drained[node] == nil {
		return
	}
	delete(m.drained, node)
	m.stopTimer(drainedTimer(node))
	m.note("node %s may come back: %s", Printable(node), by)
}

// drainedError refuses a node that was drained.
func (m *Machine) drainedError(node string) *Error {
	d := m.drained[node]
	return Errorf(CodeGraceful, "run %q goes on without node %s, which was drained by %s: %s; `rallypoint admin undrain` admits it again",
		m.runID, node, d.by, d.reason)
}

// lastDirective is the id of the directive that was given last of those that stand.
func (m *Machine) lastDirective() string {
	if len(m.directives) == 0 {
		return ""
	}
	return m.directives[len(m.directives)-1].ID
}

// directiveFor is that directive as a node is to see it.
func (m *Machine) directiveFor(n *node) DirectiveNotice {
	if len(m.directives) == 0 || n.ended {
		return DirectiveNotice{}
	}
	d := &m.directives[len(m.directives)-1]
	return DirectiveNotice{ID: d.ID, Kind: d.Kind, Named: slices.Contains(d.Nodes, n.id), Text: d.describe(), Within: d.Within}
}

func packDirectiveNotice(p *pack.Packer, v DirectiveNotice) {
	if v.ID == "" {
		p.None()
		return
	}
	p.List(5)
	p.Text(v.ID)
	p.Int(int(v.Kind))
	p.Bool(v.Named)
	p.Text(v.Text)
	p.Duration(v.Within)
}

func unpackDirectiveNotice(u *pack.Unpacker) (v DirectiveNotice) {
	if u.Open() > 0 {
		v = DirectiveNotice{ID: u.Text(MaxNameLen), Kind: DirectiveKind(u.Int()), Named: u.Bool(), Text: u.Text(maxText), Within: u.Duration()}
	}
	u.Close()
	return v
}

// packDirect writes what a directive says, as one list.
func packDirect(p *pack.Packer, d Direct) {
	p.List(8)
	p.Text(d.ID)
	p.Int(int(d.Kind))
	p.Texts(d.Nodes)
	p.Duration(d.Within)
	p.Duration(d.For)
	p.Cut(d.By, MaxNameLen)
	p.Cut(d.Reason, MaxNameLen)
	p.Time(d.At)
}

// unpackDirect reads the values of packDirect from a list that is open.
func unpackDirect(u *pack.Unpacker) Direct {
	return Direct{
		ID: u.Text(MaxNameLen), Kind: DirectiveKind(u.Int()), Nodes: u.Texts(MaxDirectiveNodes, MaxNameLen),
		Within: u.Duration(), For: u.Duration(), By: u.Text(MaxNameLen), Reason: u.Text(MaxNameLen), At: u.Time(),
	}
}

// oversize returns an error for a directive that no log may hold.
func (d Direct) oversize() error {
	if len(d.Nodes) > MaxDirectiveNodes {
		return Errorf(CodeTooLarge, "a directive about %d nodes, at most %d are allowed", len(d.Nodes), MaxDirectiveNodes)
	}
	for _, name := range append([]string{d.ID}, d.Nodes...) {
		if len(name) > MaxNameLen {
			return Errorf(CodeTooLarge, "a name of %d bytes, at most %d are allowed: %.50q…", len(name), MaxNameLen, name)
		}
	}
	return nil
}

// packDirectives writes into a snapshot which directives stand, which have ended, and which
// nodes are drained.
func (m *Machine) packDirectives(p *pack.Packer) {
	p.List(3)
	p.List(len(m.directives))
	for _, d := range m.directives {
		packDirect(p, d)
	}
	p.Texts(m.directed)
	p.List(len(m.drained))
	for _, node := range slices.Sorted(maps.Keys(m.drained)) {
		p.List(3)
		p.Text(node)
		p.Text(m.drained[node].by)
		p.Text(m.drained[node].reason)
	}
}

func (m *Machine) unpackDirectives(u *pack.Unpacker) {
	u.Open()
	for range openEach(u) {
		u.Open()
		d := unpackDirect(u)
		u.Close()
		if u.Err() == nil && (d.ID == "" || d.Kind != DirectiveDrain || m.directive(d.ID) >= 0 || len(m.directives) >= MaxDirectives) {
			u.Fail("directive %q cannot stand", d.ID)
		}
		m.directives = append(m.directives, d)
	}
	m.directed = u.Texts(MaxDirectives, maxText)
	for range openEach(u) {
		u.Open()
		node, d := u.Text(maxText), &drained{by: u.Text(maxText), reason: u.Text(maxText)}
		u.Close()
		m.drained[node] = d
	}
	u.Close()
}

// DirectiveStatus is a standing directive.
type DirectiveStatus struct {
	ID     string
	Kind   string
	Nodes  []string
	Within time.Duration
	By     string
	Reason string
	At     time.Time
}

// DrainedStatus is a node that is not admitted.
type DrainedStatus struct{ Node, By, Reason string }

// directiveStatus lists the directives that stand, and the drained nodes by id.
func (m *Machine) directiveStatus() (standing []DirectiveStatus, away []DrainedStatus) {
	for _, d := range m.directives {
		standing = append(standing, DirectiveStatus{ID: d.ID, Kind: "drain", Nodes: slices.Clone(d.Nodes), Within: d.Within, By: d.By, Reason: d.Reason, At: d.At})
	}
	for _, node := range slices.Sorted(maps.Keys(m.drained)) {
		away = append(away, DrainedStatus{Node: node, By: m.drained[node].by, Reason: m.drained[node].reason})
	}
	return standing, away
}
