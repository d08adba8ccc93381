package sharedlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"rallypoint/core/rendezvous"
)

// chaos is a run whose nodes and whose log are hurt at random.
type chaos struct {
	*cluster
	ctx    context.Context
	random *rand.Rand
	named  bool          // a node that takes a dead one's place has its name
	stray  time.Duration // how much later a write may get in
	pairs  bool          // each pair of ranks is in one rack

	nodes  []*worker
	count  int
	said   int // directives that were given, each id twice
	down   bool
	finish chan struct{} // closed: the workers are done
	work   sync.WaitGroup
}

// worker is a node that does what an agent does.
type worker struct {
	*node
	thaw  func() // not nil: it is stopped
	rack  string
	unfit chan rendezvous.Direct // the drain to ask for; of kind 0: its workers fail

	mu      sync.Mutex
	outcome rendezvous.Outcome // of its last round
	ended   bool
	err     error
}

// envSeed is the seed of the one run that TestGuaranteesUnderFaults then makes, and logs.
// What is done to the run is the same again, how its nodes take turns is not.
const envSeed = "RALLYPOINT_TEST_SEED"

const (
	chaosMin, chaosMax = 2, 4
	chaosLease         = 8 * time.Second
	endBarrier         = "torchelastic/agent/terminal_state"
)

// TestGuaranteesUnderFaults injects random faults into a run of a few nodes. Nodes die, are
// stopped for less and for more than their lease, come and go. Writes to the log are lost,
// succeed although an error is returned, succeed in part, or take effect much later. The log is
// unreachable. Snapshots replace entries. Administrators evict nodes, declare live ones dead, and
// give directives. Nodes ask to leave as unfit, and others replace them. After that the nodes
// form a round and finish, and their log keeps the guarantees.
func TestGuaranteesUnderFaults(t *testing.T) {
	seeds := 3
	if long {
		seeds = 2000
	}
	first := rand.Uint64N(1 << 40)
	again, err := strconv.ParseUint(os.Getenv(envSeed), 10, 64)
	if err == nil {
		first, seeds = again, 1
	}
	for i := range seeds {
		seed := first + uint64(i)
		t.Run(fmt.Sprint("log ", i), func(t *testing.T) { // a name that finds it when it is run again
			t.Parallel()
			t.Logf("%s=%d", envSeed, seed)
			runCluster(t, func(t *testing.T, w *cluster) { underFaults(t, w, seed) })
		})
	}
}

func underFaults(t *testing.T, w *cluster, seed uint64) {
	w.quiet = os.Getenv(envSeed) == ""
	ctx, cancel := context.WithCancel(t.Context())
	c := &chaos{cluster: w, ctx: ctx, random: rand.New(rand.NewPCG(seed, 0)), finish: make(chan struct{})}
	defer c.work.Wait()
	defer cancel()
	c.memory.info.SnapshotEntries = 5 + c.random.IntN(200)
	c.named, c.pairs = c.random.IntN(2) == 0, c.random.IntN(3) == 0
	if c.stray = chaosLease / 4; c.random.IntN(2) == 0 {
		c.stray = 3 * chaosLease
	}
	for range chaosMin + c.random.IntN(chaosMax+2-chaosMin) {
		c.start("")
	}
	c.setMishaps(true)
	for range 10 + c.random.IntN(40) {
		c.hurt()
		if c.random.IntN(3) == 0 {
			time.Sleep(c.time(3 * chaosLease))
		} else {
			time.Sleep(c.time(time.Second))
		}
	}
	c.mend()
	time.Sleep(c.stray + 2*chaosLease)
	c.await("the nodes are together", c.together)
	close(c.finish)
	last := uint64(0)
	for _, n := range c.nodes {
		last = max(last, n.last().Round)
	}
	needed := func(n *worker) bool { return n.last().Round == last }
	c.await("all members have ended", func() bool {
		return !slices.ContainsFunc(c.nodes, func(n *worker) bool { return needed(n) && !n.hasEnded() })
	})
	time.Sleep(chaosLease)
	cancel() // a node that came last waits for a run of its own, or was refused as unfit
	c.work.Wait()
	for _, n := range c.nodes {
		if ok := n.err == nil || !needed(n) && (errors.Is(n.err, rendezvous.ErrGraceful) || errors.Is(n.err, rendezvous.ErrClosed) ||
			errors.Is(n.err, rendezvous.ErrCanceled) || errors.Is(n.err, errLeft)); !ok {
			t.Errorf("%s ended with %v", n.name, n.err)
		}
	}
}

func (c *chaos) time(most time.Duration) time.Duration {
	return time.Duration(c.random.Int64N(int64(most)))
}

// start brings a node, of that name or of a new one.
func (c *chaos) start(name string) {
	if name == "" {
		name = fmt.Sprint("n", c.count)
		c.count++
	}
	p := nodeParams(name, chaosMin, chaosMax)
	if c.random.IntN(2) == 0 {
		p.HostName = "host-" + name
	}
	if c.pairs {
		p.Segment = 2
	}
	if c.pairs || c.random.IntN(2) == 0 {
		p.Topology = fmt.Sprint("rack", c.random.IntN(2))
	}
	p.LeaseTimeout, p.JoinTimeout = chaosLease, 24*time.Hour
	p.LastCallTimeout, p.RegroupTimeout, p.AdmitDelay = 3*time.Second, 20*time.Second, 500*time.Millisecond
	n := &worker{rack: p.Topology, unfit: make(chan rendezvous.Direct, 1)}
	n.node = c.cluster.node(p)
	c.nodes = append(c.nodes, n)
	c.work.Go(func() {
		err := n.run(c.ctx, c.finish)
		n.mu.Lock()
		defer n.mu.Unlock()
		n.ended, n.err = true, err
	})
}

// run goes from round to round, until the work is done.
func (w *worker) run(ctx context.Context, finish <-chan struct{}) error {
	for {
		o, err := w.Next(ctx)
		if errors.Is(err, rendezvous.ErrConnection) {
			time.Sleep(time.Second)
			continue // the log was out of reach when it came
		}
		if errors.Is(err, rendezvous.ErrUnfit) { // the answer of the run was late, or a drain was due
			return errors.Join(errLeft, w.Close())
		}
		if err != nil {
			return errors.Join(err, w.Close())
		}
		w.mu.Lock()
		w.outcome = o
		w.mu.Unlock()
		keys := w.Keys(o.Round)
		var said rendezvous.DirectiveNotice
	working:
		for w.NodesWaiting() == 0 {
			directive, changed := w.Directive()
			if directive != said && directive.Round == o.Round {
				said = directive
				w.report(ctx, directive)
				continue
			}
			select {
			case <-changed:
			case ask := <-w.unfit:
				if w.leaves(ctx, o.Round, ask) {
					return errors.Join(errLeft, w.Shutdown(ctx, rendezvous.EndLeave, "it is unfit"))
				}
				if ask.Kind == 0 { // its workers are stopped
					break working
				}
			case <-finish:
				if err := keys.Barrier(ctx, endBarrier, int64(o.World)); err != nil {
					return errors.Join(err, w.Close())
				}
				return w.Shutdown(ctx, rendezvous.EndSuccess, "done")
			case <-ctx.Done():
				return ctx.Err()
			case <-w.Changed():
			case <-time.After(time.Second):
				_, _ = keys.Add(ctx, "sum", 1)
			}
		}
	}
}

// errLeft ends a node that has left as unfit.
var errLeft = errors.New("unfit")

// leaves asks the run whether the node may leave because its workers fail, or has it be drained
// because a check finds it unfit: it leaves later then.
func (w *worker) leaves(ctx context.Context, round uint64, d rendezvous.Direct) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if d.Kind == 0 {
		return w.AnnounceStop(ctx, rendezvous.AnnounceStop{Round: round, Reason: "failed", Away: d.For}) == nil
	}
	_ = w.DrainUnfit(ctx, d)
	return false
}

// report answers what the node is asked of a directive.
func (w *worker) report(ctx context.Context, d rendezvous.DirectiveNotice) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if d.Agreed {
		_ = w.ReportSaved(ctx, d.Round, d.ID)
		return
	}
	_ = w.ReportHeld(ctx, d.Round, d.ID, rand.Int64N(10))
}

func (w *worker) last() rendezvous.Outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.outcome
}

func (w *worker) hasEnded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}

func (w *worker) hasLeft() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Is(w.err, errLeft)
}

// mishap is what becomes of an append.
func (c *chaos) mishap(entries int) (now int, later time.Duration, fails bool) {
	switch rand.IntN(40) { // by any node's goroutine
	case 0:
		return 0, 0, true
	case 1:
		return entries, 0, true
	case 2:
		return rand.IntN(entries + 1), 0, true
	case 3:
		return 0, time.Duration(rand.Int64N(int64(c.stray))), true
	case 4:
		return entries, time.Duration(rand.Int64N(int64(c.stray))), false
	}
	return entries, 0, false
}

// hurt lets one thing go wrong, or mends one.
func (c *chaos) hurt() {
	c.bringBack()
	i := c.random.IntN(len(c.nodes))
	n := c.nodes[i]
	switch c.random.IntN(14) {
	case 0, 1: // it dies, and another one comes
		if c.down {
			return // none could come
		}
		c.kill(i)
		time.Sleep(c.time(8 * time.Second))
		if name := n.name; c.named && c.random.IntN(2) == 0 {
			c.start(name)
		} else {
			c.start("")
		}
	case 2, 3, 4: // it is stopped, for less or for more than its lease
		if n.thaw == nil {
			n.thaw = n.halt.freeze()
		}
	case 5, 6, 7, 8:
		c.thaw(n)
	case 9: // no node reaches the log for a while
		c.down = !c.down
		c.reach()
	case 10:
		if c.random.IntN(2) == 0 && len(c.nodes) < chaosMax+2 && !c.down {
			c.start("")
			return
		}
		if c.down {
			return
		}
		if kind := c.random.IntN(4); kind > 0 {
			c.said++
			c.say(rendezvous.Direct{
				ID: fmt.Sprint("d", c.said/2), Kind: []rendezvous.DirectiveKind{0, rendezvous.DirectiveSave, rendezvous.DirectiveSave, rendezvous.DirectiveDrain}[kind],
				Nodes: []string{"not there"}, Within: c.time(20 * time.Second), By: "an admin", Reason: "why",
			})
			return
		}
		c.say(rendezvous.Evict{Node: n.name, By: "an admin", Reason: "its disk"})
	case 11: // another node takes it for dead
		if c.down {
			return
		}
		n.plane.mu.Lock()
		session := n.plane.session
		n.plane.mu.Unlock()
		c.say(rendezvous.Disconnect{Session: session})
	case 12, 13: // its workers fail, or a check finds it unfit
		d := rendezvous.Direct{Reason: "gpu_xid", For: time.Millisecond + c.time(30*time.Second)}
		if c.random.IntN(2) == 0 {
			d.Kind, d.Within = rendezvous.DirectiveDrain, c.time(5*time.Second)
		}
		select {
		case n.unfit <- d:
		default:
		}
	}
}

// bringBack has another node come for each that has left as unfit. By its name it is refused until
// its time is over.
func (c *chaos) bringBack() {
	for i := 0; i < len(c.nodes); i++ {
		if n := c.nodes[i]; n.hasLeft() && !c.down {
			c.nodes = slices.Delete(c.nodes, i, i+1)
			i--
			if c.named && c.random.IntN(2) == 0 {
				c.start(n.name)
			} else {
				c.start("")
			}
		}
	}
}

func (c *chaos) reach() {
	var err error
	if c.down {
		err = errors.New("no route")
	}
	c.memory.setDown(err)
}

// setMishaps lets writes fail now and then, or no more.
func (c *chaos) setMishaps(on bool) {
	c.memory.mu.Lock()
	defer c.memory.mu.Unlock()
	if c.memory.mishap = nil; on {
		c.memory.mishap = c.mishap
	}
}

func (c *chaos) say(ev rendezvous.Event) {
	data, err := rendezvous.EncodeEvent(ev)
	if err != nil {
		c.t.Fatal(err)
	}
	c.memory.mu.Lock()
	defer c.memory.mu.Unlock()
	c.memory.addLocked([][]byte{data})
}

// kill ends a node without a word.
func (c *chaos) kill(i int) {
	n := c.nodes[i]
	c.nodes = append(c.nodes[:i:i], c.nodes[i+1:]...)
	n.halt.kill()
	n.thaw = nil
	synctest.Wait()
	n.Close() // its goroutines end; nothing of it gets through
}

func (c *chaos) thaw(n *worker) {
	if n.thaw != nil {
		n.thaw()
		n.thaw = nil
	}
}

func (c *chaos) mend() {
	c.setMishaps(false)
	c.down = false
	c.reach()
	for _, n := range c.nodes {
		c.thaw(n)
		select {
		case <-n.unfit:
		default:
		}
	}
}

// places is how many nodes a round could have, were there no maximum.
func (c *chaos) places() (places int) {
	if !c.pairs {
		return len(c.nodes)
	}
	racks := map[string]int{}
	for _, n := range c.nodes {
		if racks[n.rack]++; racks[n.rack]%2 == 0 {
			places += 2
		}
	}
	return places
}

// together tells whether as many nodes as there is room for are in one round, and the
// others wait.
func (c *chaos) together() bool {
	c.bringBack()
	for c.places() < chaosMin {
		c.start("")
	}
	members := map[uint64]int{}
	last, world := uint64(0), 0
	for _, n := range c.nodes {
		o := n.last()
		if n.NodesWaiting() > 0 {
			return false
		}
		members[o.Round]++
		if o.Round > last {
			last, world = o.Round, o.World
		}
	}
	return last > 0 && members[last] == world && world == min(c.places(), chaosMax)
}

func (c *chaos) await(what string, holds func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(10 * time.Minute); !holds(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			for _, n := range c.nodes {
				n.mu.Lock()
				c.t.Errorf("%s: %+v, %d waiting (%s), ended: %v, %v", n.name, n.outcome, n.NodesWaiting(), n.Reason(), n.ended, n.err)
				n.mu.Unlock()
			}
			c.t.Fatalf("not within ten minutes: %s", what)
		}
	}
}
