package run

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent"
	"rallypoint/agent/process"
	"rallypoint/core/rendezvous"
)

// signalActions are what --on-signal can make of a signal.
var signalActions = map[string]rendezvous.DirectiveKind{
	"save": rendezvous.DirectiveSave, "drain": rendezvous.DirectiveDrain, "stop": rendezvous.DirectiveStop,
}

// setDirectives takes which signals give the job a directive, and which one tells workers of it.
func (c *config) setDirectives(o *options) (err error) {
	if o.directiveSignal != "" {
		if c.spec.DirectiveSignal, err = parseSignal("--directive-signal", o.directiveSignal); err != nil {
			return err
		}
	}
	if c.drainTimeout, err = seconds("--drain-timeout", o.drainTimeout, true); err != nil {
		return err
	}
	if o.onSignal == "" {
		return nil
	}
	c.onSignal = make(map[unix.Signal]rendezvous.DirectiveKind)
	for item := range strings.SplitSeq(o.onSignal, ",") {
		name, action, _ := strings.Cut(strings.TrimSpace(item), ":")
		sig, err := parseSignal("--on-signal", name)
		if err != nil {
			return err
		}
		kind, ok := signalActions[action]
		if !ok {
			return usagef("argument --on-signal: %q says what signal %s asks for, it must be one of %s, as in USR1:save,TERM:drain", action, name,
				strings.Join(slices.Sorted(maps.Keys(signalActions)), ", "))
		}
		c.onSignal[sig] = kind
	}
	if c.rendezvous.kind == kindStatic {
		return usagef("argument --on-signal: the nodes of a static job cannot agree on a step; let them meet at --rdzv-endpoint=HOST:PORT, a directory or an etcd")
	}
	return nil
}

// parseSignal reads the name of a signal that a program can handle, with or without SIG.
func parseSignal(option, name string) (unix.Signal, error) {
	sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(name)), "SIG"))
	switch sig {
	case 0:
		return 0, usagef("argument %s: signal %q is not known on this system", option, name)
	case unix.SIGKILL, unix.SIGSTOP:
		return 0, usagef("argument %s: signal %s cannot be handled by any program", option, name)
	}
	return sig, nil
}

// Times of directives by signals.
const (
	directTimeout = 5 * time.Second // for the control plane to have the directive
	oneRequest    = 5 * time.Second // in which signals are sent twice
	afterDeadline = 5 * time.Second // in which a drain is carried out
)

// signalDirector gives the job the directives that signals ask for.
type signalDirector struct {
	c     *config
	agent *agent.Agent
	log   *slog.Logger
	first map[unix.Signal]time.Time // when one that ends this node's part came first

	life    context.Context
	endLife context.CancelFunc
	calls   sync.WaitGroup
}

func newSignalDirector(c *config, a *agent.Agent, log *slog.Logger) *signalDirector {
	d := &signalDirector{c: c, agent: a, log: log, first: make(map[unix.Signal]time.Time)}
	d.life, d.endLife = context.WithCancel(context.Background())
	return d
}

// stop ends what is under way and waits for it.
func (s *signalDirector) stop() {
	s.endLife()
	s.calls.Wait()
}

// take does what a signal asks for; false if that is to end the agent.
func (s *signalDirector) take(sig unix.Signal) bool {
	kind, ok := s.c.onSignal[sig]
	if !ok {
		return false
	}
	if kind != rendezvous.DirectiveSave {
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
	name := process.SignalName(sig)
	d := rendezvous.Direct{Kind: kind, Within: s.c.drainTimeout, Reason: name, At: time.Now().UTC().Round(time.Millisecond)}
	ctx, cancel := context.WithTimeout(s.life, directTimeout)
	err := s.agent.Direct(ctx, d)
	cancel()
	if s.life.Err() != nil {
		return
	}
	text := fmt.Sprintf("%s: the job is asked for %v, within %v", name, kind, s.c.drainTimeout)
	if kind == rendezvous.DirectiveSave {
		if err != nil {
			text = fmt.Sprintf("%s: the job could not be asked for save: %v", name, err)
		}
		s.log.Info(text)
		return
	}
	if err != nil {
		s.log.Warn(fmt.Sprintf("%s: the job could not be asked for %v, so that the workers get the signal at once: %v", name, kind, err))
		s.agent.Signal(sig)
		return
	}
	s.log.Info(text)
	timer := time.NewTimer(s.c.drainTimeout + afterDeadline)
	defer timer.Stop()
	select {
	case <-timer.C:
		s.log.Warn(fmt.Sprintf("%s: %v was not carried out within %v; the workers get the signal", name, kind, s.c.drainTimeout+afterDeadline))
		s.agent.Signal(sig)
	case <-s.life.Done():
	}
}
