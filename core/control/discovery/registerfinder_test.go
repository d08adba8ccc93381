package discovery

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
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
		Config: Config{Params: p, Node: cmp.Or(p.NodeID, "n"), Observer: observer, Log: slog.New(slog.DiscardHandler), Start: func(cfg HostConfig, listeners ...net.Listener) Host {
			return control.Start(control.Config{RunID: cfg.Params.RunID, Log: cfg.Log, Elector: cfg.Elector, Ended: cfg.Ended}, listeners...)
		}, Hello: func() wire.Hello {
			return wire.Hello{Version: wire.ProtocolVersion, RunID: p.RunID, Session: rendezvous.SessionID(cmp.Or(p.NodeID, "n")), Node: cmp.Or(p.NodeID, "n"), Policy: p.Policy}
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

// hooked is a register whose writes a test takes part in.
type hooked struct {
	memoryRegister
	write func(ctx context.Context, set func() (now, token []byte, ok bool)) (now, token []byte, ok bool, err error)
}

func (h *hooked) SetState(ctx context.Context, state, token []byte) (now, nowToken []byte, ok bool, err error) {
	set := func() (now, nowToken []byte, ok bool) {
		now, nowToken, ok, _ = h.memoryRegister.SetState(ctx, state, token)
		return now, nowToken, ok
	}
	if h.write == nil {
		now, nowToken, ok = set()
		return now, nowToken, ok, nil
	}
	return h.write(ctx, set)
}

func (m *memoryRegister) record(t *testing.T) *register.Record {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	return testkit.Must(register.Decode(m.state))(t)
}

// TestWhoGivesUpLeavesNoLeader: the caller of a search gives up while the register takes what makes its process lead.
// Nobody has to wait for that leader, whether the answer comes or not.
func TestWhoGivesUpLeavesNoLeader(t *testing.T) {
	for name, answers := range map[string]bool{"the answer comes": true, "the answer is lost": false} {
		t.Run("Find, "+name, func(t *testing.T) {
			ctx, giveUp := context.WithCancel(controltest.Context(t))
			place := &hooked{}
			place.write = func(_ context.Context, set func() ([]byte, []byte, bool)) (now, token []byte, ok bool, err error) {
				place.write = nil
				giveUp()
				if now, token, ok = set(); !answers {
					return nil, nil, false, errors.New("no answer")
				}
				return now, token, ok, nil
			}
			f := registerFinder(registerParams(), place, controltest.NewObserver())
			defer f.Close()
			if _, err := f.Find(ctx); err == nil {
				t.Error("it has found a control plane")
			}
			if r := place.record(t); r.Phase != register.Over {
				t.Errorf("node %s is in phase %d in term %d", r.Node, r.Phase, r.Term)
			}
		})
		t.Run("Again, "+name, func(t *testing.T) {
			place := &hooked{}
			first, second := registerParams(), registerParams()
			second.NodeID = "m"
			leader := registerFinder(first, place, controltest.NewObserver())
			defer testkit.Must(leader.Find(controltest.Context(t)))(t).Close()
			f := registerFinder(second, place, controltest.NewObserver())
			l := testkit.Must(f.Find(controltest.Context(t)))(t)
			leader.Leave(controltest.Context(t))
			leader.Close()
			_ = l.Close()
			ctx, giveUp := context.WithCancel(controltest.Context(t))
			place.write = func(_ context.Context, set func() ([]byte, []byte, bool)) (now, token []byte, ok bool, err error) {
				place.write = nil
				f.Leave(ctx)
				giveUp()
				if now, token, ok = set(); !answers {
					return nil, nil, false, errors.New("no answer")
				}
				return now, token, ok, nil
			}
			if _, err := f.Again(ctx, l, io.EOF, false); err == nil {
				t.Error("it has found a control plane")
			}
			f.Close()
			if r := place.record(t); r.Node != "m" || r.Term != 2 || r.Phase == register.Leads {
				t.Errorf("node %s is in phase %d in term %d", r.Node, r.Phase, r.Term)
			}
		})
	}
}

// TestGivingUpAtARegisterThatHangs: the end of a search does not wait for a register that does not answer.
func TestGivingUpAtARegisterThatHangs(t *testing.T) {
	ctx, giveUp := context.WithCancel(controltest.Context(t))
	p := registerParams()
	p.LeaseTimeout = time.Hour
	place := &hooked{write: func(ctx context.Context, _ func() ([]byte, []byte, bool)) (now, token []byte, ok bool, err error) {
		giveUp()
		<-ctx.Done()
		return nil, nil, false, ctx.Err()
	}}
	f := registerFinder(p, place, controltest.NewObserver())
	defer f.Close()
	found := testkit.Go(func() error {
		_, err := f.Find(ctx)
		return err
	})
	select {
	case err := <-found:
		if !errors.Is(err, rendezvous.ErrCanceled) {
			t.Error(err)
		}
	case <-time.After(testkit.Patience):
		t.Fatal("it waits")
	}
}
