package rendezvous

import (
	"fmt"
	"time"

	"rallypoint/internal/pack"
)

// ClosedKind is how a run was closed; the numbers are append-only.
type ClosedKind int

// The kinds.
const (
	ClosedAdmission ClosedKind = iota + 1 // no node joins any more; the running round continues
	ClosedSuccess                         // a member's agent ended normally
	ClosedFailed                          // all nodes stop at once
	ClosedRequeue                         // a directive has ended the run, to be queued again: all nodes stop at once
)

// Closing is who closed a run, when and why; the zero value is an open run.
type Closing struct {
	Kind   ClosedKind
	By     string
	Reason string
	At     time.Time

	// Commands are the digests of what the members ran, with spaces in between; "": not told.
	Commands string `json:",omitzero"`
}

func (c *Closing) how() string {
	switch c.Kind {
	case ClosedSuccess:
		return "ended successfully"
	case ClosedFailed:
		return "failed"
	case ClosedRequeue:
		return "stopped to be queued again"
	}
	return "closed"
}

// did is the predicate: how the run was closed.
func (c *Closing) did() string {
	switch c.Kind {
	case ClosedAdmission, ClosedRequeue:
		return "was " + c.how()
	}
	return c.how()
}

func (c *Closing) text() string { return c.textOf(c.how()) }

// sentence is text after a subject: "the run" or "it".
func (c *Closing) sentence() string { return c.textOf(c.did()) }

func (c *Closing) textOf(how string) string {
	text := fmt.Sprintf("%s by %s", how, c.By)
	if !c.At.IsZero() {
		text += " at " + c.At.UTC().Format(time.RFC3339)
	}
	if c.Reason != "" {
		text += ": " + c.Reason
	}
	return text
}

// lasts reports whether a run that was closed like that stays closed for a time.
func (c *Closing) lasts() bool { return c.Kind == ClosedSuccess || c.Kind == ClosedAdmission }

// Limits of a closing that is part of facts; longer texts are cut.
const (
	maxClosingBy     = 2 * MaxNameLen
	maxClosingReason = 4 << 10
)

// cut is the closing with texts as long as facts hold them.
func (c Closing) cut() Closing {
	c.By, c.Reason = pack.CutText(c.By, maxClosingBy), pack.CutText(c.Reason, maxClosingReason)
	return c
}

func (c Closing) equal(d Closing) bool {
	return c.Kind == d.Kind && c.By == d.By && c.Reason == d.Reason && c.Commands == d.Commands && c.At.Equal(d.At)
}
