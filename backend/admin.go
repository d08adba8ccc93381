package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"rallypoint/core/control/client"
	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/sharedlog"
	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

// Admin asks a run for something in the name of a user, from outside: it is no node.
type Admin struct {
	Addr      string        // of the control plane
	SharedLog string        // the endpoint of the nodes' log, in place of Addr; see Locate
	RunID     string        // "": the only run
	Token     *secret.Token // of the control plane; nil: none
	By        string        // who asks, for those who read the reason; "": UserName
	Timeout   time.Duration // for which an etcd is tried
}

// Answer is the result of a request to a run.
type Answer struct {
	Text      string // what is done, in one sentence
	Directive string // id of the one that was given; "": none was
}

// UserName names the user and the machine of this process.
func UserName() string {
	user := cmp.Or(os.Getenv("USER"), os.Getenv("LOGNAME"), fmt.Sprintf("uid %d", os.Getuid()))
	host, err := os.Hostname()
	if err != nil {
		return user
	}
	return user + "@" + host
}

// Ask has the run apply an event that comes from no node: a Direct, CancelDirective, Undrain, Evict,
// CloseRun or Forget. Ask fills in who asks, the time, and the id of a directive that has none. At a
// control plane it is a request, else an entry in the log that the nodes share. The error says why
// nothing was done: ErrInvalid for what does not fit the run, or a run that is not there, ErrConnection,
// ErrAuth. It blocks until ctx ends at most.
func (a Admin) Ask(ctx context.Context, ev rendezvous.Event) (Answer, error) {
	by := cmp.Or(a.By, UserName())
	led := a.SharedLog != "" && HasLeader(a.SharedLog)
	if a.SharedLog != "" && !led {
		by = "admin " + by // a control plane adds that itself
	}
	ev, id := signed(ev, by)
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
	ask := a.append
	switch {
	case led:
		ask = a.query().ask
	case a.SharedLog == "":
		ask = func(ctx context.Context, ev rendezvous.Event) (string, error) {
			return client.Ask(ctx, a.Addr, a.Token, a.RunID, ev)
		}
	}
	done, err := ask(ctx, ev)
	if err != nil {
		return Answer{}, err
	}
	if _, gives := ev.(rendezvous.Direct); !gives {
		id = ""
	}
	return Answer{Text: done, Directive: id}, nil
}

func (a Admin) query() Query { return Query{a.SharedLog, a.RunID, a.Token, a.Timeout} }

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

// append appends the event to the nodes' log, if it changes anything. Its answer holds for the run
// to which the nodes apply the event: it looks again at a run that changes meanwhile.
func (a Admin) append(ctx context.Context, ev rendezvous.Event) (done string, err error) {
	for {
		done, err = a.tryAppend(ctx, ev)
		if !errors.Is(err, sharedlog.ErrMoved) {
			return done, err
		}
		if ctx.Err() != nil {
			return "", rendezvous.Errorf(rendezvous.CodeConnection, "run %q changes faster than it can be asked for something; try again", a.RunID)
		}
	}
}

func (a Admin) tryAppend(ctx context.Context, ev rendezvous.Event) (done string, err error) {
	l, records, err := inspect(ctx, a.SharedLog, a.RunID, a.Timeout)
	if err != nil {
		return "", err
	}
	run := records[0]
	if _, forgets := ev.(rendezvous.Forget); !forgets && len(run.Living) == 0 {
		return "", rendezvous.Errorf(rendezvous.CodeInvalid, "no node of run %q at %s is alive: there is no node left to tell", run.RunID, l.shown())
	}
	answer, err := foresee(run, ev)
	switch {
	case err != nil:
		return "", err
	case answer.Err != nil:
		return "", answer.Err
	case !answer.Changed:
		return answer.Text, nil
	}
	return answer.Text, appendTo(ctx, l, run, ev)
}

// foresee applies the event to a copy of the run, as each of its nodes is going to.
func foresee(run sharedlog.Record, ev rendezvous.Event) (rendezvous.Answer, error) {
	m, err := run.Machine()
	if err != nil {
		return rendezvous.Answer{}, err
	}
	for _, e := range m.Apply(ev) {
		if a, ok := e.(rendezvous.Answer); ok {
			return a, nil
		}
	}
	return rendezvous.Answer{}, rendezvous.Errorf(rendezvous.CodeInternal, "run %q does not answer a %T", run.RunID, ev)
}

// noSuchRun is the error of a run that has no log at an endpoint, shown as that; it names
// those that do.
func noSuchRun(ctx context.Context, endpoint, runID, shown string, timeout time.Duration) error {
	_, records, err := inspect(ctx, endpoint, "", timeout)
	if err != nil || len(records) == 0 {
		return rendezvous.Errorf(rendezvous.CodeInvalid, "there is no run %q at %s, nor any other run", runID, shown)
	}
	var names []string
	for _, r := range records {
		names = append(names, r.RunID)
	}
	return rendezvous.Errorf(rendezvous.CodeInvalid, "there is no run %q at %s, only %s", runID, shown, wording.Names(names))
}
