package backend

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"rallypoint/core/control"
	"rallypoint/core/control/client"
	"rallypoint/core/control/wire"
	"rallypoint/core/election/register"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

type registerPlace interface {
	place
	// shown returns the endpoint with defaults filled in, without secrets.
	shown() string
	// runs returns the ids of the runs there. An etcd is tried until the timeout.
	runs(ctx context.Context, timeout time.Duration) ([]string, error)
	// register returns the register of a run, and what ends it.
	register(runID string, timeout time.Duration) (r register.Register, end func(), err error)
	// only is the run that the endpoint names; "": it names none.
	only() string
}

// led is a run that a place has, which is shown.
type led struct {
	runID, place string
	*register.Record
}

// place is where a register names the runs' leaders.
func (a Admin) place() registerPlace { return a.At.at.(registerPlace) }

// records reads the records of the runs in question, in the order of their ids. A run that is asked for
// must be there.
func (a Admin) records(ctx context.Context) (list []led, err error) {
	id := cmp.Or(a.RunID, a.place().only())
	ids := []string{id}
	if id == "" {
		if ids, err = a.place().runs(ctx, a.Timeout); err != nil {
			return nil, err
		}
		slices.Sort(ids)
	}
	for _, id := range ids {
		r, err := a.read(ctx, id)
		if err != nil {
			return nil, err
		}
		if r != nil {
			list = append(list, led{id, a.place().shown(), r})
		}
	}
	if len(list) == 0 && id != "" {
		return nil, a.noSuchRun(ctx, id)
	}
	return list, nil
}

func (a Admin) read(ctx context.Context, runID string) (*register.Record, error) {
	r, end, err := a.place().register(runID, a.Timeout)
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
		return nil, rendezvous.Errorf(rendezvous.CodeState, "run %q: what is stored at %s is not of a run: %v", runID, a.place().shown(), err)
	}
	return record, nil
}

// noSuchRun is the error of a run that is not there; it names those that are.
func (a Admin) noSuchRun(ctx context.Context, runID string) error {
	at := a.place().shown()
	names, err := a.place().runs(ctx, a.Timeout)
	if err != nil || len(names) == 0 {
		return rendezvous.Errorf(rendezvous.CodeInvalid, "there is no run %q at %s, nor any other run", runID, at)
	}
	slices.Sort(names)
	return rendezvous.Errorf(rendezvous.CodeInvalid, "there is no run %q at %s, only %s", runID, at, wording.Names(names))
}

// AskLeaders asks the leaders of the runs that a register names. The status of a single run is its
// leader's own; a run without one is described as its record tells. raw is the document.
func (a Admin) AskLeaders(ctx context.Context) (raw []byte, st control.Status, err error) {
	list, err := a.records(ctx)
	if err != nil {
		return nil, st, err
	}
	st = control.Status{Schema: control.StatusSchema, Runs: []control.RunStatus{}}
	for _, l := range list {
		of, err := a.statusOf(ctx, l, len(list) == 1)
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
		return min(1, b.Present()) - min(1, a.Present())
	})
	st.Place, st.RunsTotal = a.place().shown(), len(st.Runs)
	st.Runs = st.Runs[:min(len(st.Runs), control.MaxStatusRuns)]
	raw, err = json.Marshal(st)
	return raw, st, err
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

// askLeader asks the leader of a run. While it does not answer, the record is read again, since
// another one may lead meanwhile.
func askLeader[T any](ctx context.Context, a Admin, l led, ask func(context.Context, string) (T, error)) (answer T, err error) {
	final := func(err error) bool {
		return errors.As(err, new(*rendezvous.Error)) && !errors.Is(err, rendezvous.ErrConnection)
	}
	const atRegister = "" // no server has this address
	answer, err = client.AskHost(ctx, atRegister, final, func(ctx context.Context, addr string) (none T, err error) {
		if addr != atRegister {
			return ask(ctx, addr)
		}
		if r, err := a.read(ctx, l.runID); err == nil && r != nil {
			l.Record = r
		}
		switch l.Phase {
		case register.Over:
			return none, l.unled(nil)
		case register.Leads:
			return none, &wire.Redirected{To: wire.Redirect{Host: l.Addr, Node: l.Node}}
		}
		return none, &wire.Redirected{}
	})
	if err != nil && !final(err) {
		err = l.unled(err)
	}
	return answer, err
}

// statusOf asks the leader of one run: only the one that the record names, unless patient.
func (a Admin) statusOf(ctx context.Context, l led, patient bool) (st control.Status, err error) {
	if m := l.resting(); m != nil {
		return described(m), nil
	}
	if !patient && l.Phase != register.Leads {
		return st, l.unled(nil)
	}
	ask := func(ctx context.Context, addr string) (st control.Status, err error) {
		code, _, body, err := Get(ctx, addr, a.Token, "/status", l.runID)
		switch {
		case err != nil:
			return st, err
		case code == http.StatusForbidden:
			return st, rendezvous.Errorf(rendezvous.CodeAuth, "the control plane at %s requires a token", addr)
		case code == http.StatusNotFound: // it has just begun to lead, and no node has come
			return described(rendezvous.New(rendezvous.Config{RunID: l.runID})), nil
		case code != http.StatusOK:
			return st, fmt.Errorf("it answers HTTP with code %d", code)
		}
		if err = json.Unmarshal(body, &st); err == nil && st.Schema < 1 {
			err = fmt.Errorf("its status has schema %d", st.Schema)
		}
		return st, err
	}
	if patient {
		return askLeader(ctx, a, l, ask)
	}
	return ask(ctx, l.Addr)
}

// unled is the error for a leader that does not answer, with what the record says about it.
func (l led) unled(err error) error {
	node, where := printable.Text(rendezvous.MachineOf(l.Node)), fmt.Sprintf("run %q at %s", l.runID, l.place)
	switch {
	case l.Phase == register.Over:
		return rendezvous.Errorf(rendezvous.CodeInvalid, "no node of %s is alive: its last leader, node %s, has left; the next node begins it again", where, node)
	case l.Phase == register.Left:
		return rendezvous.Errorf(rendezvous.CodeConnection, "nobody leads %s: its last leader, node %s, has left, and no other node has taken over", where, node)
	}
	return rendezvous.Errorf(rendezvous.CodeConnection, "the leader of %s does not answer: by its record, which was written %d times in term %d, that is node %s with its control plane at %s: %v; "+
		"if the node is dead, another one leads a lease later at most; if it lives, open the way to its port", where, l.Beat, l.Term, node, l.Addr, err)
}

// askLed is Ask for a run whose leader a register names.
func (a Admin) askLed(ctx context.Context, ev rendezvous.Event) (done string, err error) {
	list, err := a.records(ctx)
	if err != nil {
		return "", err
	}
	l := list[0]
	if m := l.resting(); m != nil {
		return a.askResting(ctx, l, m, ev)
	}
	return askLeader(ctx, a, l, func(ctx context.Context, addr string) (string, error) {
		return client.Ask(ctx, addr, a.Token, l.runID, ev)
	})
}

// askResting answers a request to a run that stays closed: it may be forgotten.
func (a Admin) askResting(ctx context.Context, l led, m *rendezvous.Machine, ev rendezvous.Event) (done string, err error) {
	if _, forgets := ev.(rendezvous.Forget); !forgets {
		return "", rendezvous.Errorf(rendezvous.CodeInvalid, "no node of run %q at %s is alive: there is no node left to tell", l.runID, l.place)
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
	r, end, err := a.place().register(l.runID, a.Timeout)
	if err != nil {
		return "", err
	}
	defer end()
	return answer.Text, register.Forget(ctx, r, l.Record)
}
