package peers

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/params"
	"rallypoint/core/secret"
	"rallypoint/internal/wording"
)

// Host is the server of this process.
type Host interface {
	// Begin makes it continue, in a reign, the runs that the servers know, and returns how many these are. alone
	// tells that no majority could be asked whether there was more. Nodes are served once the Peers lead.
	Begin(reign uint64, alone bool) (runs int)
	// Abandon takes Begin back.
	Abandon()
	// StepDown sends all nodes to another server; why is for the log.
	StepDown(to wire.Redirect, why string)
}

// Config names the servers, and this one among them.
type Config struct {
	Group  *standby.Peers
	Lease  time.Duration // the group's
	Token  *secret.Token // nil: none
	Host   Host
	Log    *slog.Logger
	silent time.Duration // how often the server logs what it waits for; 0: silentEvery
}

// silentEvery is how often a server without a host logs what it waits for.
const silentEvery = 10 * time.Second

// Peers are the connections of this server to the others, and its part in their vote.
type Peers struct {
	Config
	life      context.Context
	cancel    context.CancelFunc
	running   sync.WaitGroup
	beginning atomic.Bool
}

// Start begins to take part. A name that is none is ErrInvalid.
func Start(cfg Config) (*Peers, error) {
	p := &Peers{Config: cfg}
	p.life, p.cancel = context.WithCancel(context.Background())
	for _, name := range cfg.Group.Others() {
		at, err := params.ParseEndpoint(name, params.DefaultPort)
		if err != nil {
			p.cancel()
			p.running.Wait()
			return nil, err
		}
		p.running.Go(func() { p.keep(name, at) })
	}
	told := teller{p: p, since: time.Now()}
	p.running.Go(func() { p.Group.TakePart(p.life, p.obey, told.tell) })
	return p, nil
}

// Close ends the connections, and returns when every goroutine has ended. The server is closed
// before.
func (p *Peers) Close() {
	p.Group.Close()
	p.cancel()
	p.running.Wait()
}

// obey acts on each result of the vote once.
func (p *Peers) obey() {
	if to, deposed := p.Group.Deposed(); deposed {
		why := fmt.Sprintf("%s was elected in term %d", to.Node, to.Term)
		if to.Node == "" {
			why = "it has no majority, and a majority of the servers has formed another group"
		}
		p.Host.StepDown(to, why)
	}
	if p.Group.Lame() {
		p.Host.StepDown(wire.Redirect{Group: p.Group.Current().Group, Node: p.Group.Self()}, p.Group.NoMajority())
	}
	if p.beginning.Load() {
		return
	}
	if reign, alone, elected := p.Group.Elected(); elected {
		p.beginning.Store(true)
		p.running.Go(func() { // the vote goes on meanwhile
			defer p.beginning.Store(false)
			p.begin(reign, alone)
		})
	}
}

// begin makes this server, which was elected, lead.
func (p *Peers) begin(reign uint64, alone bool) {
	runs := p.Host.Begin(reign, alone)
	if !p.Group.Lead(reign, time.Now()) {
		p.Host.Abandon()
		return
	}
	r := p.Group.Report()
	text := fmt.Sprintf("the servers have formed a group: %s leads", r.Node)
	switch from := r.Takeover.From; {
	case from == r.Node:
		text = "this server leads again"
	case from != "":
		text = fmt.Sprintf("this server leads now: %s is silent for %s", from, wording.Seconds(r.Takeover.Took))
		if !p.Group.VoteReport().Silent {
			text = fmt.Sprintf("this server leads now: %s is dead", from)
		}
	}
	p.Log.Info(text, "term", r.Term, "runs", runs)
}

// teller logs from time to time what a server waits for.
type teller struct {
	p     *Peers
	since time.Time // it has waited, or the log has said so
	waits bool
	hosts string
}

func (t *teller) tell() {
	every := cmp.Or(t.p.silent, silentEvery)
	missing := t.p.Group.NoMajority()
	if missing == "" {
		if t.waits {
			t.p.Log.Info("the servers have a majority again")
		}
		t.waits, t.since = false, time.Now()
		t.follow()
		return
	}
	if now := time.Now(); now.Sub(t.since) >= every {
		t.waits, t.since = true, now
		t.p.Log.Warn(missing)
	}
}

// follow says which server leads, if that has changed.
func (t *teller) follow() {
	to := t.p.Group.Current()
	if to.Node == "" || t.p.Group.Hosting() {
		t.hosts = ""
		return
	}
	if hosts := fmt.Sprint(to.Node, to.Term); hosts != t.hosts {
		t.hosts = hosts
		t.p.Log.Info(to.Node+" leads; this server stands by", "term", to.Term)
	}
}
