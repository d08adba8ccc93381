package discovery

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/core/control"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/election/register"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// memoryRegister is a register in this process.
type memoryRegister struct {
	mu    sync.Mutex
	state []byte
	token []byte
}

func (m *memoryRegister) GetState(context.Context) (state, token []byte, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state, m.token, nil
}

func (m *memoryRegister) SetState(_ context.Context, state, token []byte) (now, nowToken []byte, ok bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ok = bytes.Equal(token, m.token); ok {
		n, _ := strconv.Atoi(string(m.token))
		m.state, m.token = state, []byte(strconv.Itoa(n+1))
	}
	return m.state, m.token, ok, nil
}

func registerParams() params.Params {
	p := controltest.Params("localhost", 2)
	p.Endpoint, p.Servers = "a register", nil
	return p
}

// TestAnotherJobAtTheLeadersAddress: the leader that a register names is dead, and another job with the same run
// id has its port. Whether that job refuses the node or lets it in, it is not asked for long: the node leads
// once the leader has written nothing for a lease.
func TestAnotherJobAtTheLeadersAddress(t *testing.T) {
	for name, nodes := range map[string]int{"it refuses": 3, "it lets in": 2} {
		t.Run(name, func(t *testing.T) {
			l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
			other := controltest.Params(l.Addr().String(), nodes)
			server := control.Start(control.Config{RunID: other.RunID, Log: slog.New(slog.DiscardHandler)}, l)
			defer server.Close()
			connected(t, other, controltest.NewObserver())

			p := registerParams()
			p.LeaseTimeout = 200 * time.Millisecond
			dead := register.Record{
				RunID: p.RunID, Group: "g", Term: 1, Leader: "l", Node: "dead", Addr: l.Addr().String(), Machine: "another", Beat: 1, Lease: p.LeaseTimeout,
			}
			place := &memoryRegister{state: testkit.Must(dead.Encode())(t), token: []byte("1")}
			f := registerFinder(p, place, controltest.NewObserver())
			defer f.Close()
			found, err := f.Find(controltest.Context(t))
			if err != nil {
				t.Fatal(err)
			}
			defer found.Close()
			if w := found.Welcome; w.Group != "g" || w.Term != 2 || !f.Hosting() {
				t.Errorf("it follows %q in term %d", w.Group, w.Term)
			}
		})
	}
}

// registerFinder finds the control plane of a run by a register, or hosts it.
func registerFinder(p params.Params, place register.Register, observer member.Observer) *RegisterFinder {
	return NewRegister(RegisterConfig{
		Config: Config{Params: p, Node: "n", Observer: observer, Log: slog.New(slog.DiscardHandler), Start: func(cfg HostConfig, listeners ...net.Listener) Host {
			return control.Start(control.Config{RunID: cfg.Params.RunID, Log: cfg.Log, Elector: cfg.Elector, Ended: cfg.Ended}, listeners...)
		}, Hello: func() wire.Hello {
			return wire.Hello{Version: wire.ProtocolVersion, RunID: p.RunID, Session: rendezvous.SessionID("n"), Node: "n", Policy: p.Policy}
		}},
		Register: place, OwnHost: func() string { return "127.0.0.1" },
	})
}

// refusing is a register that cannot be read until it is opened.
type refusing struct {
	memoryRegister
	open chan struct{}
}

func (r *refusing) GetState(ctx context.Context) (state, token []byte, err error) {
	select {
	case <-r.open:
		return r.memoryRegister.GetState(ctx)
	default:
		return nil, nil, errors.New("connection refused")
	}
}

// TestRegisterThatRefuses: a node that waits for its register says so, with the cause.
func TestRegisterThatRefuses(t *testing.T) {
	place, observer := &refusing{open: make(chan struct{})}, controltest.NewObserver()
	f := registerFinder(registerParams(), place, observer)
	defer f.Close()
	found := make(chan error, 1)
	go func() {
		l, err := f.Find(controltest.Context(t))
		if err == nil {
			l.Close()
		}
		found <- err
	}()
	observer.Await(t, "that it looks for the control plane", func(e any) bool {
		p, told := e.(rendezvous.Progress)
		return told && strings.Contains(p.Headline, "a register") && strings.Contains(p.Detail, "connection refused")
	})
	close(place.open)
	if err := <-found; err != nil {
		t.Error(err)
	}
}

// unanswered is a register whose first answer to a write is lost.
type unanswered struct {
	memoryRegister
	once sync.Once
}

func (u *unanswered) SetState(ctx context.Context, state, token []byte) (now, nowToken []byte, ok bool, err error) {
	now, nowToken, ok, err = u.memoryRegister.SetState(ctx, state, token)
	u.once.Do(func() { now, nowToken, ok, err = nil, nil, false, errors.New("no answer") })
	return now, nowToken, ok, err
}

// TestLateLeaderKnowsHowTheRunEnded: a process that learns later that it leads keeps a run closed that stays so.
func TestLateLeaderKnowsHowTheRunEnded(t *testing.T) {
	p := registerParams()
	over := register.Record{
		RunID: p.RunID, Group: "g", Term: 1, Leader: "l", Node: "gone", Addr: "10.0.0.1:1", Beat: 1, Lease: p.LeaseTimeout, Phase: register.Over,
		Ended: &rendezvous.Ended{Closing: rendezvous.Closing{Kind: rendezvous.ClosedSuccess, By: "gone"}, For: time.Hour},
	}
	place := &unanswered{memoryRegister: memoryRegister{state: testkit.Must(over.Encode())(t), token: []byte("1")}}
	f := registerFinder(p, place, controltest.NewObserver())
	defer f.Close()
	found, err := f.Find(controltest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	if !found.Welcome.Notice.Closed {
		t.Error("the run begins again")
	}
}

// late is a register whose first write is applied when the next one comes.
type late struct {
	memoryRegister
	first func()
}

func (l *late) SetState(ctx context.Context, state, token []byte) (now, nowToken []byte, ok bool, err error) {
	if l.first == nil {
		l.first = func() { l.memoryRegister.SetState(ctx, state, token) }
		return nil, nil, false, errors.New("no answer")
	}
	l.first()
	l.first = func() {}
	return l.memoryRegister.SetState(ctx, state, token)
}

// TestLateWriteOfALeader: a register takes what a process has written in order to lead only when the process tries again. It
// leads, and does not wait until the leader that it seems to see is silent.
func TestLateWriteOfALeader(t *testing.T) {
	p := registerParams()
	p.LeaseTimeout = time.Hour
	f := registerFinder(p, &late{}, controltest.NewObserver())
	defer f.Close()
	found, err := f.Find(controltest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	if !f.Hosting() {
		t.Error("it does not lead")
	}
}
