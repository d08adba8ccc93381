package backend

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"rallypoint/core/control/client"
	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/internal/printable"
)

// Admin asks a run for something in the name of a user, from outside: it is no node.
type Admin struct {
	At      Place         // where the run is
	RunID   string        // "": the only run
	Token   *secret.Token // of the control plane; nil: none
	By      string        // who asks, for those who read the reason; "": user and machine
	Timeout time.Duration // for which an etcd is tried
}

// Answer is the result of a request to a run.
type Answer struct {
	Text      string // what is done, in one sentence
	Directive string // id of the one that was given; "": none was
}

// userName names the user and the machine of this process.
func userName() string {
	user := cmp.Or(os.Getenv("USER"), os.Getenv("LOGNAME"), fmt.Sprintf("uid %d", os.Getuid()))
	host, err := os.Hostname()
	if err != nil {
		return user
	}
	return user + "@" + host
}

// Ask has the run apply an event that comes from no node: a Direct, CancelDirective, Undrain, Evict,
// CloseRun or Forget. Ask fills in who asks, the time, and the id of a directive that has none. The error says why
// nothing was done: ErrInvalid for what does not fit the run, or a run that is not there, ErrConnection,
// ErrAuth. It blocks until ctx ends at most.
func (a Admin) Ask(ctx context.Context, ev rendezvous.Event) (Answer, error) {
	ev, id := signed(ev, cmp.Or(a.By, userName()))
	switch {
	case ev == nil:
		return Answer{}, rendezvous.Errorf(rendezvous.CodeInternal, "an administrator cannot ask for this event")
	case len(id) > rendezvous.MaxNameLen || printable.Text(id) != id:
		return Answer{}, rendezvous.Errorf(rendezvous.CodeInvalid, "the id of a directive has at most %d bytes, all of them printable, not %.100q", rendezvous.MaxNameLen, id)
	}
	if a.RunID == "" {
		run, err := a.Status(ctx)
		if err != nil {
			return Answer{}, err
		}
		a.RunID = run.RunID
	}
	var done string
	var err error
	if servers := a.At.Servers(); servers != "" {
		done, err = client.Ask(ctx, servers, a.Token, a.RunID, ev)
	} else {
		done, err = a.askLed(ctx, ev)
	}
	if err != nil {
		return Answer{}, err
	}
	if _, gives := ev.(rendezvous.Direct); !gives {
		id = ""
	}
	return Answer{Text: done, Directive: id}, nil
}

// NoReason is the reason that the nodes of a job receive if the administrator gives none.
const NoReason = "no reason given"

// signed fills in who asks and when, and the reason if there is none. It returns the event and a
// directive's id; a nil event if administrators may not send it.
func signed(ev rendezvous.Event, by string) (of rendezvous.Event, id string) {
	at := time.Now().UTC().Round(time.Millisecond)
	reason := func(given string) string { return cmp.Or(strings.TrimSpace(given), NoReason) }
	switch e := ev.(type) {
	case rendezvous.Direct:
		e.ID, e.By, e.At, e.Reason = cmp.Or(e.ID, member.NewDirectiveID()), by, at, reason(e.Reason)
		return e, e.ID
	case rendezvous.CancelDirective:
		e.By, e.Reason = by, reason(e.Reason)
		return e, e.ID
	case rendezvous.Cordon:
		e.By, e.Reason = by, reason(e.Reason)
		return e, ""
	case rendezvous.Undrain:
		e.By, e.Reason = by, reason(e.Reason)
		return e, ""
	case rendezvous.Forget:
		e.By, e.Reason = by, reason(e.Reason)
		return e, ""
	case rendezvous.Evict:
		e.By, e.Reason = by, reason(e.Reason)
		return e, ""
	case rendezvous.CloseRun:
		e.By, e.At, e.Reason = by, at, reason(e.Reason)
		return e, ""
	}
	return nil, ""
}
