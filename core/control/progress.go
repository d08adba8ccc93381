package control

import (
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
)

// With more than a thousand waiting nodes, each learns less often what it waits for: at intervals
// of one millisecond per waiting node, at most progressRarely.
const (
	progressPerNode = time.Millisecond
	progressRarely  = 10 * time.Second
)

// progressNotifier knows which nodes wait and which text each has received.
type progressNotifier struct {
	conns   map[*serverConn]struct{} // with a join that may be pending
	timer   Stopper                  // nil: stopped
	forming progressText
	beside  progressText
	version uint64
}

// progressText is the last text for one kind of waiting node, ready to be sent.
type progressText struct {
	text    rendezvous.Progress
	version uint64
	frame   []byte
}

func (p *progressNotifier) stop() {
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}

// set takes a new text; the same one again keeps its version.
func (p *progressNotifier) set(t *progressText, text rendezvous.Progress) {
	if t.version == 0 || t.text != text {
		p.version++
		*t = progressText{text, p.version, wire.AppendFrame(nil, wire.Progress{Progress: text})}
	}
}

func (p *progressNotifier) interval() time.Duration {
	return min(max(time.Duration(len(p.conns))*progressPerNode, wire.ProgressEvery), progressRarely)
}

func (r *run) startWaiting(p *serverConn) {
	p.waitingSince, p.lastSent = r.server.clock.Now(), 0
	r.waiting.conns[p] = struct{}{}
	if r.waiting.timer == nil {
		r.armProgress(wire.ProgressFirst)
	}
}

func (r *run) stopWaiting(p *serverConn) {
	delete(r.waiting.conns, p)
	if len(r.waiting.conns) == 0 {
		r.waiting.stop()
	}
}

func (r *run) armProgress(after time.Duration) {
	r.waiting.timer = r.server.clock.AfterFunc(after, func() { r.callback(r.pushProgress) })
}

// pushProgress sends the changes to the nodes that wait.
func (r *run) pushProgress() {
	b := &r.waiting
	b.timer = nil
	now := r.server.clock.Now()
	asked, silent := false, ""
	if r.quietLocked() {
		silent = r.server.cfg.Elector.NoMajority()
	}
	for p := range b.conns {
		forming, pending := r.machine.Forming(p.session)
		if !pending && silent == "" {
			delete(b.conns, p)
			continue
		}
		if now.Sub(p.waitingSince) < wire.ProgressFirst {
			continue
		}
		if !asked {
			asked = true
			newForming, newBeside := r.machine.Progress()
			newForming.Detail = r.withRefusedLocked(newForming.Detail)
			if silent != "" { // the round may be complete, and nobody is told
				newForming = rendezvous.Progress{Headline: "the control plane waits for its voters", Detail: silent}
				newBeside = newForming
			}
			b.set(&b.forming, newForming)
			b.set(&b.beside, newBeside)
		}
		t := &b.beside
		if forming {
			t = &b.forming
		}
		if p.lastSent != t.version {
			p.lastSent = t.version
			p.out.SendBytes(t.frame, wire.KindProgress)
		}
	}
	if len(b.conns) > 0 {
		r.armProgress(b.interval())
	}
}
