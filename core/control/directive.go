package control

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/wording"
)

// MaxWithin bounds the deadline of a directive, and for how long a node is drained.
const MaxWithin = 30 * 24 * time.Hour

// Foresee says to an administrator what an event is going to do to a run; the error says why it
// would do nothing. What closing a run did is known only afterwards: Closed says it.
func Foresee(m *rendezvous.Machine, ev rendezvous.Event) (string, *rendezvous.Error) {
	if _, ok := ev.(rendezvous.CloseRun); ok {
		return "", nil
	}
	was := m.Status()
	switch ev := ev.(type) {
	case rendezvous.Evict:
		who, err := findNode(&was, ev.Node)
		return fmt.Sprintf("%s was evicted from run %q", who, was.RunID), err
	case rendezvous.Direct:
		if stands, ended := m.DirectiveGiven(ev.ID); stands || ended {
			return givenBefore(ev.ID, was.RunID, stands), nil
		}
		if err := m.Misfit(ev); err != nil {
			return "", rendezvous.Errorf(err.Code, "run %q: %s", was.RunID, err.Text)
		}
		return directed(&was, ev)
	case rendezvous.CancelDirective:
		for _, d := range was.Directives {
			if d.ID == ev.ID {
				return fmt.Sprintf("directive %s of run %q is canceled", ev.ID, was.RunID), nil
			}
		}
		ids := make([]string, 0, len(was.Directives))
		for _, d := range was.Directives {
			ids = append(ids, d.ID)
		}
		return "", rendezvous.Errorf(rendezvous.CodeInvalid, "no directive %q of run %q stands; %s", ev.ID, was.RunID, standing(ids, "standing"))
	case rendezvous.Undrain:
		return undrained(&was, ev.Node)
	}
	return "", rendezvous.Errorf(rendezvous.CodeInternal, "an administrator cannot ask for a %T", ev)
}

// undrained says what becomes of a request to let a drained node join again.
func undrained(was *rendezvous.Status, node string) (string, *rendezvous.Error) {
	ids := make([]string, 0, len(was.Drained))
	for _, d := range was.Drained {
		if d.Node == node {
			return fmt.Sprintf("node %s may join run %q again", node, was.RunID), nil
		}
		ids = append(ids, d.Node)
	}
	for _, d := range was.Directives {
		if slices.Contains(d.Nodes, node) {
			return "", rendezvous.Errorf(rendezvous.CodeInvalid, "node %q of run %q is not drained yet; directive %s is to drain it: cancel that", node, was.RunID, d.ID)
		}
	}
	return "", rendezvous.Errorf(rendezvous.CodeInvalid, "node %q of run %q is not drained; %s", node, was.RunID, standing(ids, "drained"))
}

// givenBefore is the answer to a directive that is repeated, as where the first answer was lost.
func givenBefore(id, runID string, stands bool) string {
	now := "is over; another directive needs another id"
	if stands {
		now = "stands"
	}
	return fmt.Sprintf("nothing to do: directive %s of run %q was given before, and %s", id, runID, now)
}

// standing lists names under what they are.
func standing(names []string, what string) string {
	if len(names) == 0 {
		return "none is " + what
	}
	return what + ": " + nameSome(names)
}

// directed checks a directive, and says what it does.
func directed(was *rendezvous.Status, d rendezvous.Direct) (string, *rendezvous.Error) {
	invalid := func(format string, args ...any) (string, *rendezvous.Error) {
		return "", rendezvous.Errorf(rendezvous.CodeInvalid, "run %q: "+format, append([]any{was.RunID}, args...)...)
	}
	switch {
	case d.ID == "":
		return invalid("a directive without an id")
	case was.Closed != nil:
		return invalid("it is closed: it %s", closedText(was.Closed))
	case d.Within < 0 || d.Within > MaxWithin:
		return invalid("the deadline is in %v, it must be between 0 and %v from now", d.Within, MaxWithin)
	case len(was.Directives) >= rendezvous.MaxDirectives:
		return invalid("%d directives stand already; cancel one first", len(was.Directives))
	case d.Kind != rendezvous.DirectiveDrain && len(d.Nodes) > 0:
		return invalid("a %v is about all nodes, it names none", d.Kind)
	case d.Kind != rendezvous.DirectiveDrain && d.For != 0:
		return invalid("only a drained node is not admitted for a time, a %v has none", d.Kind)
	}
	begin := fmt.Sprintf("directive %s of run %q: ", d.ID, was.RunID)
	when := "now"
	if d.Within > 0 {
		when = fmt.Sprintf("when all have saved, in %v at the latest", d.Within)
	}
	switch d.Kind {
	case rendezvous.DirectiveSave:
		if d.Within == 0 {
			return invalid("a save needs time: give it a deadline after now")
		}
		done := fmt.Sprintf("its workers save, within %v", d.Within)
		if !slices.ContainsFunc(was.Members, func(m rendezvous.MemberStatus) bool { return m.State == "running" }) {
			done += "; none run now, those of the next round do if it begins by then"
		}
		return begin + done, nil
	case rendezvous.DirectiveScale:
		if finished(was) != "" {
			return tellsOnly(was, d)
		}
		return begin + fmt.Sprintf("it goes on with %s %s", wording.Count(d.Target, "node", "nodes"), when), nil
	case rendezvous.DirectiveStop:
		return begin + "it ends, to be queued again, " + when, nil
	}
	return drained(was, d)
}

// finished is a node of the run whose workers have succeeded; "" if there is none.
func finished(was *rendezvous.Status) string {
	for _, m := range was.Members {
		if m.State == "finished" {
			return m.Node
		}
	}
	return ""
}

// tellsOnly says what becomes of a directive that changes the nodes of a job that is about to
// end: the workers learn of it, and no more.
func tellsOnly(was *rendezvous.Status, d rendezvous.Direct) (string, *rendezvous.Error) {
	why := fmt.Sprintf("node %s has finished, so that the job ends with the nodes that it has", finished(was))
	if d.Within == 0 {
		return "", rendezvous.Errorf(rendezvous.CodeInvalid, "run %q: a %v would do nothing: %s", was.RunID, d.Kind, why)
	}
	return fmt.Sprintf("directive %s of run %q: its workers save, within %v, and nothing more: %s", d.ID, was.RunID, d.Within, why), nil
}

// drained checks a drain, and says what it does.
func drained(was *rendezvous.Status, d rendezvous.Direct) (string, *rendezvous.Error) {
	invalid := func(format string, args ...any) (string, *rendezvous.Error) {
		return "", rendezvous.Errorf(rendezvous.CodeInvalid, "run %q: "+format, append([]any{was.RunID}, args...)...)
	}
	switch {
	case len(d.Nodes) == 0 || len(d.Nodes) > rendezvous.MaxDirectiveNodes:
		return invalid("a drain names 1 to %d nodes, not %d", rendezvous.MaxDirectiveNodes, len(d.Nodes))
	case d.For < 0 || d.For > MaxWithin:
		return invalid("a node is drained for %v, it must be between 0 (until it is undrained) and %v", d.For, MaxWithin)
	}
	who, verb := "", "leaves"
	for i, node := range d.Nodes {
		text, err := findNode(was, node)
		if err != nil {
			return "", err
		}
		if i > 0 {
			who, verb = strings.TrimSuffix(who, ",")+"; ", "leave"
		}
		who += text
	}
	if finished(was) != "" {
		return tellsOnly(was, d)
	}
	when := "now"
	isMember := func(m rendezvous.MemberStatus) bool { return m.Session != "" && slices.Contains(d.Nodes, m.Node) }
	if d.Within > 0 && slices.ContainsFunc(was.Members, isMember) {
		when = fmt.Sprintf("when all have saved, in %v at the latest", d.Within)
	}
	done := fmt.Sprintf("directive %s of run %q: %s %s %s", d.ID, was.RunID, who, verb, when)
	if d.For > 0 {
		done += fmt.Sprintf(", and may come back %v later", d.For)
	} else {
		done += ", and may come back when it is undrained"
	}
	left, members := 0, 0
	for _, m := range was.Members {
		if m.State == "lost" {
			continue
		}
		members++
		if !slices.Contains(d.Nodes, m.Node) {
			left++
		}
	}
	for _, j := range was.Waiting {
		if !j.Member && !slices.Contains(d.Nodes, j.Node) {
			left++
		}
	}
	switch {
	case left == 0 && members == 0:
		done += "; no other node is there: the next ones that come begin the job"
	case left == 0:
		done += "; no other node is there: the run ends then, to be queued again"
	case left < was.Policy.Min:
		done += fmt.Sprintf("; the others are too few then (%d of at least %d) and wait for replacements", left, was.Policy.Min)
	}
	return done, nil
}

// directiveStatus is a directive as /status has it.
func directiveStatus(d rendezvous.DirectiveStatus) DirectiveStatus {
	s := DirectiveStatus{
		ID: d.ID, Kind: d.Kind, Nodes: d.Nodes, WithinS: seconds(d.Within), At: d.At, By: d.By, Reason: d.Reason,
		Target: d.Target, Phase: string(d.Phase), Round: d.Round, Members: d.Members, Saved: d.Saved, Missing: d.Missing,
	}
	if s.Nodes == nil {
		s.Nodes = []string{}
	}
	if s.Missing == nil {
		s.Missing = []string{}
	}
	if d.Step >= 0 {
		s.Step = &d.Step
	}
	return s
}
