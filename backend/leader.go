package backend

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"rallypoint/core/control"
	"rallypoint/core/control/client"
	"rallypoint/core/election/register"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

// registerPlace is a place with a register of each run's leader.
type registerPlace interface {
	place
	// endpoint returns the endpoint with defaults filled in, secrets included, and shown without them.
	endpoint() string
	shown() string
	// runs returns the ids of the runs there. An etcd is tried until the timeout.
	runs(ctx context.Context, timeout time.Duration) ([]string, error)
	// register returns the register of a run, and what ends it.
	register(runID string, timeout time.Duration) (r register.Register, end func(), err error)
	// only is the run that the endpoint names; "": it names none.
	only() string
}

// Query asks a place about its runs from outside.
type Query struct {
	Place   string        // the endpoint, as Locate returns it
	RunID   string        // "": all
	Token   *secret.Token // of the leaders; nil: none
	Timeout time.Duration
}

// led is a run that a place has.
type led struct {
	runID string
	*register.Record
}

// records reads the records of the runs in question, in the order of their ids. A run that is asked for
// must be there.
func (q Query) records(ctx context.Context) (at registerPlace, list []led, err error) {
	p, err := placeOf(q.Place)
	if err != nil {
		return nil, nil, err
	}
	at = p.(registerPlace)
	id := q.RunID
	if id == "" {
		id = at.only()
	}
	ids := []string{id}
	if id == "" {
		if ids, err = at.runs(ctx, q.Timeout); err != nil {
			return nil, nil, err
		}
		slices.Sort(ids)
	}
	for _, id := range ids {
		r, err := q.read(ctx, at, id)
		if err != nil {
			return nil, nil, err
		}
		if r != nil {
			list = append(list, led{id, r})
		}
	}
	if len(list) == 0 && id != "" {
		return nil, nil, q.noSuchRun(ctx, at, id)
	}
	return at, list, nil
}

func (q Query) read(ctx context.Context, at registerPlace, runID string) (*register.Record, error) {
	r, end, err := at.register(runID, q.Timeout)
	if err != nil {
		return nil, err
	}
	defer end()
	state, _, err := r.GetState(ctx)
	if err != nil || state == nil {
		return nil, err
	}
	record, err := register.Decode(state)
	if err != nil {
		return nil, rendezvous.Errorf(rendezvous.CodeState, "run %q: what is stored at %s is not of a run: %v", runID, at.shown(), err)
	}
	return record, nil
}

// noSuchRun is the error of a run that is not there; it names those that are.
func (q Query) noSuchRun(ctx context.Context, at registerPlace, runID string) error {
	names, err := at.runs(ctx, q.Timeout)
	if err != nil || len(names) == 0 {
		return rendezvous.Errorf(rendezvous.CodeInvalid, "there is no run %q at %s, nor any other run", runID, at.shown())
	}
	slices.Sort(names)
	return rendezvous.Errorf(rendezvous.CodeInvalid, "there is no run %q at %s, only %s", runID, at.shown(), wording.Names(names))
}

// Status asks the leaders of the runs there. That of a single run is its leader's own; a run without one
// is described as its record tells. raw is the document.
func (q Query) Status(ctx context.Context) (raw []byte, st control.Status, err error) {
	at, list, err := q.records(ctx)
	if err != nil {
		return nil, st, err
	}
	st = control.Status{Schema: control.StatusSchema, Runs: []control.RunStatus{}}
	for _, l := range list {
		of, err := q.statusOf(ctx, at, l)
		if err != nil && len(list) == 1 {
			return nil, st, err
		}
		if err != nil {
			of = described(rendezvous.New(rendezvous.Config{RunID: l.runID}))
		}
		if st.Runs = append(st.Runs, of.Runs...); len(list) == 1 {
			st.Server = of.Server
		}
	}
	slices.SortStableFunc(st.Runs, func(a, b control.RunStatus) int { // those with nodes first
		return min(1, present(&b)) - min(1, present(&a))
	})
	st.Place, st.RunsTotal = at.shown(), len(st.Runs)
	st.Runs = st.Runs[:min(len(st.Runs), control.MaxStatusRuns)]
	raw, err = json.Marshal(st)
	return raw, st, err
}

// present counts the nodes of a run that live.
func present(r *control.RunStatus) (n int) {
	n = len(r.Waiting) + len(r.Idle)
	for _, m := range r.Members {
		if m.Alive {
			n++
		}
	}
	return n
}

// described is the status of a run without a leader.
func described(m *rendezvous.Machine) control.Status {
	return control.Status{Runs: []control.RunStatus{control.Describe(m.Status())}}
}

// resting is the machine of a run that has ended and stays closed; nil: that is not so.
func (l led) resting() *rendezvous.Machine {
	if l.Phase != register.Over || l.Ended == nil {
		return nil
	}
	m := rendezvous.New(rendezvous.Config{RunID: l.runID, Generation: l.Group})
	m.Apply(*l.Ended)
	return m
}

// statusOf asks the leader of one run.
func (q Query) statusOf(ctx context.Context, at registerPlace, l led) (st control.Status, err error) {
	if m := l.resting(); m != nil {
		return described(m), nil
	}
	if l.Phase != register.Leads {
		return st, l.unled(at, nil)
	}
	code, _, body, err := Get(ctx, l.Addr, q.Token, "/status", l.runID)
	switch {
	case err == nil && code == http.StatusForbidden:
		return st, rendezvous.Errorf(rendezvous.CodeAuth, "the control plane at %s requires a token", l.Addr)
	case rendezvous.CodeOf(err) == rendezvous.CodeAuth, rendezvous.CodeOf(err) == rendezvous.CodeState:
		return st, err
	case err == nil && code == http.StatusNotFound: // it has just begun to lead, and no node has come
		return described(rendezvous.New(rendezvous.Config{RunID: l.runID})), nil
	case err == nil && code != http.StatusOK:
		err = fmt.Errorf("it answers HTTP with code %d", code)
	}
	if err == nil {
		if err = json.Unmarshal(body, &st); err == nil && st.Schema < 1 {
			err = fmt.Errorf("its status has schema %d", st.Schema)
		}
	}
	if err != nil {
		return st, l.unled(at, err)
	}
	return st, nil
}

// unled is the error for a leader that does not answer, with what the record says about it.
func (l led) unled(at registerPlace, err error) error {
	node, where := printable.Text(rendezvous.MachineOf(l.Node)), fmt.Sprintf("run %q at %s", l.runID, at.shown())
	switch {
	case l.Phase == register.Over:
		return rendezvous.Errorf(rendezvous.CodeInvalid, "no node of %s is alive: its last leader, node %s, has left; the next node begins it again", where, node)
	case l.Phase == register.Left:
		return rendezvous.Errorf(rendezvous.CodeConnection, "nobody leads %s: its last leader, node %s, has left, and no other node has taken over", where, node)
	}
	return rendezvous.Errorf(rendezvous.CodeConnection, "the leader of %s does not answer: by its record, which was written %d times in term %d, that is node %s with its control plane at %s: %v; "+
		"if the node is dead, another one leads a lease later at most; if it lives, open the way to its port", where, l.Beat, l.Term, node, l.Addr, err)
}

// ask has the leader of a run apply an event.
func (q Query) ask(ctx context.Context, ev rendezvous.Event) (done string, err error) {
	at, list, err := q.records(ctx)
	if err != nil {
		return "", err
	}
	l := list[0]
	if m := l.resting(); m != nil {
		return q.askResting(ctx, at, l, m, ev)
	}
	if l.Phase != register.Leads {
		return "", l.unled(at, nil)
	}
	done, err = client.Ask(ctx, l.Addr, q.Token, l.runID, ev)
	if rendezvous.CodeOf(err) == rendezvous.CodeConnection {
		return "", l.unled(at, err)
	}
	return done, err
}

// askResting answers a request to a run that stays closed: it may be forgotten.
func (q Query) askResting(ctx context.Context, at registerPlace, l led, m *rendezvous.Machine, ev rendezvous.Event) (done string, err error) {
	if _, forgets := ev.(rendezvous.Forget); !forgets {
		return "", rendezvous.Errorf(rendezvous.CodeInvalid, "no node of run %q at %s is alive: there is no node left to tell", l.runID, at.shown())
	}
	var answer rendezvous.Answer
	for _, e := range m.Apply(ev) {
		if a, ok := e.(rendezvous.Answer); ok {
			answer = a
		}
	}
	if answer.Err != nil {
		return "", answer.Err
	}
	r, end, err := at.register(l.runID, q.Timeout)
	if err != nil {
		return "", err
	}
	defer end()
	return answer.Text, register.Forget(ctx, r, l.Record)
}
