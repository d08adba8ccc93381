package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/process"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/backoff"
)

// signalActions returns what a signal can ask the job for.
func signalActions() map[string]rendezvous.DirectiveKind {
	actions := make(map[string]rendezvous.DirectiveKind)
	for _, kind := range rendezvous.DirectiveKinds() {
		if kind.OfOneNode() {
			actions[kind.String()] = kind
		}
	}
	return actions
}

// ownSignals are sent to any process without a user's request, or used by the Go runtime, so they
// cannot ask for anything.
var ownSignals = []unix.Signal{
	unix.SIGCHLD, unix.SIGURG, unix.SIGPIPE, unix.SIGWINCH, unix.SIGPROF, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGSEGV, unix.SIGSYS, unix.SIGTRAP,
}

// ParseOnSignal parses which signal asks the job for what, as in "USR1:save,TERM:drain".
func ParseOnSignal(text string) (map[unix.Signal]rendezvous.DirectiveKind, error) {
	known, actions := signalActions(), make(map[unix.Signal]rendezvous.DirectiveKind)
	for item := range strings.SplitSeq(text, ",") {
		name, action, _ := strings.Cut(strings.TrimSpace(item), ":")
		sig, err := ParseSignal(name)
		if err != nil {
			return nil, err
		}
		if slices.Contains(ownSignals, sig) {
			return nil, fmt.Errorf("programs also receive signal %s for other reasons, so it cannot make a request; use another one, such as USR1", name)
		}
		if other, twice := actions[sig]; twice {
			return nil, fmt.Errorf("signal %s is given twice, first for %v, in %q", name, other, text)
		}
		kind, ok := known[action]
		if !ok {
			return nil, fmt.Errorf("%q says what signal %s asks for, it must be one of %s, as in USR1:save,TERM:drain", action, name,
				strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		actions[sig] = kind
	}
	return actions, nil
}

// ParseSignal reads the name of a signal that a program can handle, with or without SIG.
func ParseSignal(name string) (unix.Signal, error) {
	sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(name)), "SIG"))
	switch sig {
	case 0:
		return 0, fmt.Errorf("signal %q is not known on this system", name)
	case unix.SIGKILL, unix.SIGSTOP:
		return 0, fmt.Errorf("signal %s cannot be handled by any program", name)
	}
	return sig, nil
}

const (
	directTimeout = 5 * time.Second // for the control plane to have the directive
	afterDeadline = 5 * time.Second // in which a drain is carried out
)

// signalDirector gives the job the directives that signals ask for.
type signalDirector struct {
	*node
	after time.Duration // see afterDeadline

	mu    sync.Mutex
	first map[unix.Signal]time.Time // when one that ends this node's part came first
	ended bool                      // the run is over: signals do nothing

	life    context.Context
	endLife context.CancelFunc
	calls   sync.WaitGroup
}

func newSignalDirector(n *node) *signalDirector {
	d := &signalDirector{node: n, after: afterDeadline, first: make(map[unix.Signal]time.Time)}
	d.life, d.endLife = context.WithCancel(context.Background())
	return d
}

func (s *signalDirector) stop() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.endLife()
	s.calls.Wait()
}

// take carries out a signal's request; it returns false if the signal ends the agent.
func (s *signalDirector) take(sig unix.Signal) bool {
	kind, ok := s.spec.OnSignal[sig]
	if !ok {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return true
	}
	if kind.EndsRound() {
		now := time.Now()
		switch first, again := s.first[sig]; {
		case again && now.Sub(first) >= oneRequest:
			return false
		case again:
			return true
		}
		s.first[sig] = now
	}
	s.calls.Go(func() { s.give(sig, kind) })
	return true
}

// give gives the directive. A node that cannot leave by one leaves by the signal itself.
func (s *signalDirector) give(sig unix.Signal, kind rendezvous.DirectiveKind) {
	name, within := process.SignalName(sig), s.spec.DrainTimeout
	d := rendezvous.Direct{Kind: kind, Within: within, Reason: name, At: time.Now().UTC().Round(time.Millisecond)}
	ctx, cancel := context.WithTimeout(s.life, directTimeout)
	err := s.direct(ctx, d)
	cancel()
	if s.life.Err() != nil {
		return
	}
	text := fmt.Sprintf("%s: asked the job to %v within %v", name, kind, within)
	if !kind.EndsRound() {
		if err != nil {
			text = fmt.Sprintf("%s: the job could not be asked to %v: %v", name, kind, err)
		}
		s.log.Info(text)
		return
	}
	if err != nil {
		s.log.Warn(fmt.Sprintf("%s: the job could not be asked to %v, so the workers get the signal at once: %v", name, kind, err))
		s.interrupts.request(sig, s.spec.ShutdownTimeout)
		return
	}
	s.log.Info(text)
	limit, grace := within+s.after, s.spec.ShutdownTimeout+s.after
	if !backoff.Sleep(s.life, limit) {
		return
	}
	if !s.running.Load() { // the workers are being stopped already, and have their grace
		limit += grace
		if !backoff.Sleep(s.life, grace) {
			return
		}
	}
	s.log.Warn(fmt.Sprintf("%s: %v was not carried out within %v; the workers get the signal", name, kind, limit))
	s.interrupts.request(sig, s.spec.ShutdownTimeout)
}
