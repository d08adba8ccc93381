package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

// DirectiveKind is what a directive asks for; the numbers are append-only.
type DirectiveKind int

// The kinds. The workers learn of each, and save, before it is carried out.
const (
	DirectiveSave  DirectiveKind = 1 // the workers save; the job continues
	DirectiveDrain DirectiveKind = 2 // the named nodes leave; they are not admitted again for a time
	DirectiveScale DirectiveKind = 3 // the job continues with another number of nodes
	DirectiveStop  DirectiveKind = 4 // the run ends, to be queued again
)

// kindTraits are what the kinds differ in; the zero value is of a kind that there is not.
type kindTraits struct {
	name      string
	strength  int    // of two, the stronger one stands
	does      string // what the job does, before when it does it, where that is the same for all nodes
	endsRound bool   // the workers train on in another round, or not at all
	endsRun   bool   // all nodes leave, also after the first has finished
	byNode    bool   // a node gives it about itself: on a signal, in C, alone in its job
	nodes     bool   // it names nodes, which are not admitted for a time
	target    bool   // it has a number of nodes to continue with
}

var directiveKinds = [...]kindTraits{
	DirectiveSave:  {name: "save", strength: 1, byNode: true},
	DirectiveDrain: {name: "drain", strength: 3, endsRound: true, byNode: true, nodes: true},
	DirectiveScale: {name: "scale", strength: 2, does: "it continues with", endsRound: true, target: true},
	DirectiveStop:  {name: "stop", strength: 4, does: "it ends, to be queued again,", endsRound: true, endsRun: true, byNode: true},
}

func (d DirectiveKind) traits() kindTraits {
	if d < 0 || int(d) >= len(directiveKinds) {
		return kindTraits{}
	}
	return directiveKinds[d]
}

func (d DirectiveKind) String() string {
	if name := d.traits().name; name != "" {
		return name
	}
	return fmt.Sprintf("directive %d", int(d))
}

// EndsRound reports whether the workers are stopped for it, when they have saved.
func (d DirectiveKind) EndsRound() bool { return d.traits().endsRound }

// NamesNodes reports whether it is about the nodes that it names, and else about all.
func (d DirectiveKind) NamesNodes() bool { return d.traits().nodes }

// HasTarget reports whether it needs a number of nodes to continue with.
func (d DirectiveKind) HasTarget() bool { return d.traits().target }

// OfOneNode reports whether a node may give it about itself alone, as on a signal.
func (d DirectiveKind) OfOneNode() bool { return d.traits().byNode }

// replaces reports whether a directive of this kind takes the place of one of another kind.
func (d DirectiveKind) replaces(other DirectiveKind) bool {
	return d.traits().strength > other.traits().strength
}

// DirectiveKinds returns all kinds, by their numbers.
func DirectiveKinds() (kinds []DirectiveKind) {
	for kind := range directiveKinds {
		if directiveKinds[kind].name != "" {
			kinds = append(kinds, DirectiveKind(kind))
		}
	}
	return kinds
}

// Bounds of directives.
const (
	maxRemembered     = 64 // ids of directives that no longer stand
	maxDeadlines      = 64 // of the directives that have joined the one that stands
	MaxDirectiveNodes = 1024
)

// Direct gives a directive to a run (docs/decisions/0046, 0075). Its id identifies it: one that
// comes again changes nothing, also after it has ended.
type Direct struct {
	ID     string
	Kind   DirectiveKind
	Nodes  []string      // ids of those that it is about, if it is a drain
	Within time.Duration // until its deadline, from when it is applied; 0: at once
	For    time.Duration // how long a drained node is not admitted; 0: until Undrain
	By     string
	Reason string
	At     time.Time // wall clock, for display only
	Target int       `json:",omitzero"` // of a scale: the number of nodes to continue with
}

// CancelDirective takes back a directive that has not been carried out.
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

// Cordon keeps a node out, by its id or its host, which need not be here: it is refused, and a
// node without workers leaves. Members whose workers run stay until their round ends.
type Cordon struct {
	Node   string
	For    time.Duration // 0: until Undrain
	By     string
	Reason string
}

func (d *Direct) describe(called *names) string {
	text := d.Kind.String()
	switch {
	case d.Kind.NamesNodes():
		var names []string
		for _, node := range d.Nodes[:min(len(d.Nodes), maxNames)] {
			names = append(names, called.of(node))
		}
		text += " " + strings.Join(names, ", ")
		if more := len(d.Nodes) - maxNames; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
	case d.Kind.HasTarget():
		text += " to " + wording.Count(d.Target, "node", "nodes")
	}
	if d.Within > 0 {
		text += fmt.Sprintf(" within %v", d.Within)
	}
	return text + ", asked for by " + d.By + ": " + d.Reason
}

// sound reports whether a directive can stand in some run.
func (d *Direct) sound() bool {
	return d.ID != "" && printable.Text(d.ID) == d.ID && d.Kind.traits().name != "" && d.Within >= 0 && d.For >= 0 && d.Target >= 0 && d.Kind.HasTarget() == (d.Target > 0)
}

// joinedBy reports whether another directive asks for nothing that this one cannot do with it.
func (d *Direct) joinedBy(other *Direct) bool {
	return other.Kind == d.Kind && other.Target == d.Target
}

// join adds another directive to this one: the nodes of both, the longer time for which they are
// not admitted, the nearer deadline. It reports whether that may be the other's.
func (d *Direct) join(other *Direct) (sooner bool) {
	d.Nodes = d.union(other)
	d.By, d.Reason = both(d.By, other.By, ", "), both(d.Reason, other.Reason, "; ")
	if d.For > 0 && (other.For == 0 || other.For > d.For) {
		d.For = other.For
	}
	if other.Within >= d.Within {
		return false
	}
	end := d.At.Add(d.Within)
	if nearer := other.At.Add(other.Within); nearer.Before(end) {
		end = nearer
	}
	d.Within, d.At = other.Within, end.Add(-other.Within)
	return true
}

func (d *Direct) union(other *Direct) []string {
	nodes := slices.Clone(d.Nodes)
	for _, node := range other.Nodes {
		if !slices.Contains(nodes, node) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// both returns two texts as one; a text that is part of the other adds nothing.
func both(a, b, between string) string {
	switch {
	case strings.Contains(a, b):
		return a
	case strings.Contains(b, a):
		return b
	}
	return pack.CutText(a+between+b, MaxNameLen)
}

// until says when a directive is carried out at the latest, by the clock of whoever gave it.
func (d *Direct) until() string {
	if d.At.IsZero() {
		return ""
	}
	return " until " + d.At.Add(d.Within).UTC().Format("2006-01-02 15:04:05 UTC")
}

// DirectiveStatus is a standing directive.
type DirectiveStatus struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"` // save, drain, scale or stop
	Nodes   []string  `json:"nodes"`
	WithinS float64   `json:"within_s"` // from At to its deadline
	At      time.Time `json:"at"`
	By      string    `json:"by"`
	Reason  string    `json:"reason"`
	Target  int       `json:"target"` // of a scale; 0: it is none

	Phase   DirectivePhase `json:"phase"`
	Round   uint64         `json:"round"`   // whose members are asked or have agreed; 0 while it waits
	Step    *int64         `json:"step"`    // that they agreed on; null: none, the workers get it at once
	Members int            `json:"members"` // running ones of the round
	Saved   int            `json:"saved"`   // of these, whose workers have saved
	Missing []string       `json:"missing"` // some of those that have not said yet what the phase waits for
}

// DirectivePhase is how far a directive is in the running round.
type DirectivePhase string

// The phases.
const (
	DirectiveWaiting  DirectivePhase = "waiting"  // for a round
	DirectiveAgreeing DirectivePhase = "agreeing" // the members say at which step their workers are held
	DirectiveAgreed   DirectivePhase = "agreed"   // the workers get it, at the step if there is one
)

// DrainedStatus is a node that is not admitted.
type DrainedStatus struct {
	Node     string `json:"node"`
	By       string `json:"by"`
	Reason   string `json:"reason"`
	Cause    string `json:"cause"`    // a DrainCause
	Cordoned bool   `json:"cordoned"` // a node whose workers ran stays until its round ends
}

// MaxWithin bounds the deadline of a directive, and for how long a node is drained.
const MaxWithin = 30 * 24 * time.Hour

// DirectiveReport is what a node has reported of a directive in its last round. Each hello repeats
// it, since a control plane that has taken over does not know.
type DirectiveReport struct {
	ID    string
	Step  int64
	Saved bool
}

// MaxDirectiveReports is how many reports a hello carries, the last ones.
const MaxDirectiveReports = 8

// DirectiveNotice is the standing directive in a node's view. It is level-triggered: one that
// is not in the notice any more needs no workers to be held. An agreed step reaches all workers
// of its round, even if the directive is canceled, replaced or over by then, so that no worker
// is left out.
type DirectiveNotice struct {
	ID     string        // "": none stands
	Kind   DirectiveKind //
	Named  bool          // this node leaves, or the run ends
	Text   string        // what it asks for, who gave it, why; human-readable
	Within time.Duration // from when it was given to its deadline

	// Round is the one whose members hold their workers and report (ReportDirective), or
	// have agreed, if this node is a running one of them; else 0: nothing is asked of it.
	Round  uint64
	Agreed bool  // Step is decided; there is one for each directive and round
	Step   int64 // each worker gets it at its first report of this step, or of a later one; -1: at once
	Target int   // of a scale

	By     string // who asked for it
	Reason string
}

// agreeTime is how long members may take to say at which step they hold their workers.
const agreeTime = 5 * time.Second

func (d *Direct) agreeTime() time.Duration { return min(agreeTime, (d.Within+1)/2) }

// DrainCause is why a node is kept out. The numbers stand in logs and snapshots.
type DrainCause int

// The causes. A node that was not drained by an administrator is out at its own request.
const (
	CauseAdmin    DrainCause = 0 // a drain
	CauseFailures DrainCause = 1 // its workers kept failing
	CauseCheck    DrainCause = 2 // a check found it unfit
	causes                   = 3
)

// DrainCauses are all causes.
var DrainCauses = [causes]DrainCause{CauseAdmin, CauseFailures, CauseCheck}

// String is the cause's name in the status.
func (c DrainCause) String() string {
	switch c {
	case CauseAdmin:
		return "admin"
	case CauseFailures:
		return "failures"
	case CauseCheck:
		return "check"
	}
	return fmt.Sprintf("cause %d", int(c))
}
