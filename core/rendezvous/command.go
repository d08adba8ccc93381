package rendezvous

import (
	"fmt"
	"slices"
	"strings"

	"rallypoint/internal/printable"
)

// Command is what a node runs, so that nodes of two jobs do not wait for each other's places
// (docs/decisions/0146).
type Command struct {
	Digest string // hexadecimal, of all that nodes of one job have in common; "": not to be compared
	Text   string // human-readable, bounded, without secrets; "": not known
}

// Bounds of commands. A closing with more different ones tells none.
const (
	maxDigest          = 64
	maxClosingCommands = 16
	maxClosingDigests  = maxClosingCommands * (maxDigest + 1)
)

// clean is the command as it was received, fit to be compared and shown.
func (c Command) clean() Command {
	if len(c.Digest) > maxDigest || strings.Trim(c.Digest, "0123456789abcdef") != "" {
		c.Digest = ""
	}
	c.Text = printable.Text(c.Text)
	return c
}

// differs reports whether two commands are known to differ.
func (c Command) differs(d Command) bool {
	return c.Digest != "" && d.Digest != "" && c.Digest != d.Digest
}

// full reports whether the running round has no place for another node, now and without a loss:
// what joins then is a spare.
func (f *forming) full() bool {
	members := len(f.round.participants)
	return f.round.finishing() ||
		members > 0 && f.round.tally[participantRunning] == members && members >= f.places() && f.round.overtaken == ""
}

// strange returns a member that shows that the node, a spare, is of another job: none is known to
// run the node's command. A node that was a member of the run once, or says no command, is none.
func (f *forming) strange(n *node) *participant {
	if n.member || n.command.Digest == "" || !f.full() {
		return nil
	}
	var other *participant
	for _, s := range f.round.participants {
		switch {
		case s.command.Digest == n.command.Digest:
			return nil
		case other == nil && s.command.Digest != "":
			other = s
		}
	}
	return other
}

// refuseStrangers refuses the spares that a completed round has left, if they are of another job.
func (f *forming) refuseStrangers(left []*node) {
	for _, n := range left {
		if s := f.strange(n); s != nil {
			f.refuseJoin(n, f.strangeError(n, s), "")
		}
	}
}

func (f *forming) strangeError(n *node, s *participant) *Error {
	holder := f.round.names.ofMember(s)
	if s.label != "" && s.label != holder {
		holder += " (" + s.label + ")"
	}
	what := fmt.Sprintf("node %s would wait as a spare, but it was started with another command than the job that runs here: %s", f.round.names.of(n.id), quoted(n.command))
	if n.command.Text == s.command.Text {
		what += fmt.Sprintf("; round %d on node %s runs one that reads the same and differs in the script's contents, or in arguments that are not shown", f.round.number, holder)
	} else {
		what += fmt.Sprintf("; round %d on node %s runs %s", f.round.number, holder, quoted(s.command))
	}
	return Errorf(CodeMismatch, "run %q: %s. %s; if it is meant as a spare of this job, start it with --rdzv-conf=any_command=1", f.round.run.runID, what, ownJob)
}

// ownJob says what a user does whose node is of another job.
const ownJob = "To run it as a job of its own, give it its own --rdzv-id, and a free endpoint if a node of a job hosts this one"

func quoted(c Command) string {
	if c.Text == "" {
		return "a command that is not known"
	}
	return "`" + c.Text + "`"
}

// commandsDiffer says in one line that the nodes of a round run different commands; "" if they do
// not. Nodes may do so on purpose: with their own number among the arguments, say.
func (f *forming) commandsDiffer(nodes []*node) string {
	var first, other *node
	more := -1
	for _, n := range nodes {
		switch {
		case n.command.Digest == "":
		case first == nil:
			first = n
		case n.command.differs(first.command):
			if other == nil {
				other = n
			}
			more++
		}
	}
	if other == nil {
		return ""
	}
	text := fmt.Sprintf("the nodes run different commands: %s on node %s, %s on node %s",
		quoted(first.command), f.round.names.of(first.id), quoted(other.command), f.round.names.of(other.id))
	if first.command.Text == other.command.Text {
		text += ", which differ in the script's contents, or in arguments that are not shown"
	}
	if more > 0 {
		text += fmt.Sprintf(", and others on %d more", more)
	}
	return text
}

// commands are the digests of the members' commands, each once, with spaces in between; "" if a
// member's is not known, or if there are too many.
func (r *round) commands() string {
	var list []string
	for _, s := range r.participants {
		switch {
		case s.command.Digest == "":
			return ""
		case slices.Contains(list, s.command.Digest):
		case len(list) == maxClosingCommands:
			return ""
		default:
			list = append(list, s.command.Digest)
		}
	}
	return strings.Join(list, " ")
}

// ranAnother reports whether a run that has ended is known to have run other commands than this.
func (c *Closing) ranAnother(d Command) bool {
	return c.Commands != "" && d.Digest != "" && !slices.Contains(strings.Fields(c.Commands), d.Digest)
}
