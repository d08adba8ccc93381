package rendezvous

import "fmt"

// Apply applies one event and returns what the driver must do, in order. The
// returned slice is the caller's.
func (m *Machine) Apply(ev Event) []Effect {
	r, ofNode := RequestOf(ev)
	if c, ok := ev.(CloseRun); ok && c.Session == "" {
		ofNode = false // an administrator's
	}
	if !ofNode {
		m.applyOther(ev)
	} else if n := m.take(r); n != nil {
		m.applyRequest(n, ev)
	}
	m.settle()
	return m.out.take()
}

// applyRequest applies a request of a node that take admits.
func (m *Machine) applyRequest(n *node, ev Event) {
	switch ev := ev.(type) {
	case Join:
		m.join(n, ev)
	case Withdraw:
		m.forming.withdraw(n, ev)
	case Leave:
		m.leave(n, ev)
	case CloseRun:
		m.closeRun(ev)
		m.nodes.answer(n, ev.Number, nil)
	case Finish:
		m.finish(n)
		m.nodes.answer(n, ev.Number, nil)
	case AwaitPeers:
		if len(n.linger) == 0 {
			m.nodes.awaitingPeers = append(m.nodes.awaitingPeers, n)
		}
		m.nodes.addAwait(n, ev.Number)
	case KeyRequest:
		m.keyRequest(n, ev)
	case GiveDirective:
		err := m.room(ev)
		switch {
		case err != nil:
		case ev.Unfit:
			err = m.drainUnfit(n, ev.Directive)
		default:
			err = m.giveDirective(n, ev.Directive)
		}
		m.nodes.reply(n, Reply{Session: n.session, Number: ev.Number, Err: err})
	case ReportDirective:
		m.directives.noteReport(n, ev)
		m.nodes.answer(n, ev.Number, nil)
	case AnnounceStop:
		err := m.announceStop(n, ev)
		m.nodes.reply(n, Reply{Session: n.session, Number: ev.Number, Err: err})
	default:
		panic(fmt.Sprintf("rendezvous: unknown request %T", ev))
	}
}

// applyOther applies an event that is no node's request.
func (m *Machine) applyOther(ev Event) {
	switch ev := ev.(type) {
	case Hello:
		m.hello(ev)
	case Disconnect:
		m.disconnect(ev)
	case LeaseExpired:
		if n := m.nodes.sessions[ev.Session]; n != nil {
			m.lose(n, fmt.Sprintf(causeSilent+"%v", m.forming.policy.LeaseTimeout))
		}
	case TimerFired:
		m.timerFired(ev.Timer)
	case Recovered:
		m.recovered(ev)
	case Ended:
		m.goOnClosed(ev)
	case Evict, CloseRun, Direct, CancelDirective, Cordon, Undrain, Forget:
		m.request(ev)
	default:
		panic(fmt.Sprintf("rendezvous: unknown event %T", ev))
	}
}

// settle brings everything that follows from the state up to date.
func (m *Machine) settle() {
	if len(m.round.participants) > 0 {
		m.forming.endHoldIfComplete()
	}
	m.settleDirective()
	if m.closed == nil {
		m.endIfAllFinished()
	}
	if m.closed == nil {
		if m.forming.evaluate() {
			m.complete()
		} else if m.round.finishing() {
			m.forming.refuseRejoined()
		}
		m.endIfAllFinished() // the last members may have been refused a regroup
	}
	m.settleDirective() // of a round that was completed
	m.settleViews()     // before the answers: a member that ends its wait asks at once how the run has ended
	m.settleExitBarrier()
	m.settleAwaitPeers()
}

func (m *Machine) timerFired(t Timer) {
	if !m.out.fired(t) {
		return
	}
	switch t.Kind { // nothing follows from TimerClosed: see Kept
	case TimerLastCall, TimerQuiet, TimerRegroup, TimerAdmit:
		m.forming.clocks[t.Kind].due = true
	case TimerHold:
		m.endHold()
	case TimerDirective:
		m.deadlinePassed()
	case TimerAgree:
		m.directives.agreeTimePassed()
	case TimerDrained:
		m.directives.expire(string(t.Session))
	case TimerGrace:
		if n := m.nodes.sessions[t.Session]; n != nil && n.grace {
			m.lose(n, n.graceCause())
		}
	}
}
