// Command swarm is the load of the control plane's benchmarks: many nodes in one
// process, each with the client that a real node has, but for those of a directive: see
// bareSwarm. It prints one line of JSON for each round or look.
//
//	swarm meet ADDR N [ROUNDS]   N nodes join a run of N; how long a round takes
//	swarm racks ADDR N [ROUNDS]  the same, with nodes in racks of 40, in segments of 8
//	swarm hold ADDR N SECONDS    N nodes form a round and stay, idle; the process
//	                             says "held", and ends after so long
//	swarm train ADDR N SECONDS   the same, and their workers report a step a second
//	swarm direct ADDR N TIMES    N nodes form a round, and agree on the step of a
//	                             directive so often
//	swarm stop ADDR N TIMES      N nodes form a round, and one of them stops it; so
//	                             often
//	swarm add ADDR N ADDS        N nodes form a round, and each adds so often to a
//	                             key of the agents, one after the other
//	swarm get ADDR N GETS        N nodes form a round: the first one gets a key of
//	                             the agents so often, one after the other, while
//	                             the others add all the time
//	swarm lose ADDR N            the process that hosts N nodes' control plane is killed
//	swarm silence ADDR N         the same, but it is stopped for good
//	swarm probe ADDR             how long one good client waits: see probe
//	swarm crowd ADDR SILENT SLOW DRIPS RATE   bad clients: see crowd
//	swarm handshakes ADDR N      N that never end their TLS handshake
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	"rallypoint/core/control/client"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/core/training"
)

// crowdGC makes a process of many clients collect its memory as seldom as theirs together
// would: a node has one client in a small heap, which it may not collect once in the seconds
// that are measured here.
const crowdGC = 400

func main() {
	if len(os.Args) > 1 && os.Args[1] != "host" { // that one is measured as it is
		debug.SetGCPercent(crowdGC)
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "swarm:", err)
		os.Exit(1)
	}
}

// modes are what nodes of one run do, so often or for so many seconds.
var modes = map[string]func(ctx context.Context, addr string, n, last int) error{
	"meet":  func(ctx context.Context, addr string, n, last int) error { return meet(ctx, "meet", addr, n, last) },
	"racks": func(ctx context.Context, addr string, n, last int) error { return meet(ctx, "racks", addr, n, last) },
	"hold":  func(ctx context.Context, addr string, n, last int) error { return hold(ctx, addr, n, last, false) },
	"train": func(ctx context.Context, addr string, n, last int) error { return hold(ctx, addr, n, last, true) },
	"add":   add,
	"get":   get,
	"stop":  stop,
	"direct": func(ctx context.Context, addr string, n, last int) error {
		return direct(ctx, os.Stdout, addr, n, last)
	},
	"lose":       func(ctx context.Context, addr string, n, _ int) error { return lose(ctx, addr, n, os.Kill) },
	"silence":    func(ctx context.Context, addr string, n, _ int) error { return lose(ctx, addr, n, syscall.SIGSTOP) },
	"handshakes": func(_ context.Context, addr string, n, _ int) error { return handshakes(addr, n) },
}

func run(args []string) error {
	mode := ""
	if len(args) > 0 {
		mode = args[0]
	}
	switch {
	case mode == "probe" && len(args) == 2:
		return probe(args[1])
	case mode == "crowd" && len(args) == 6:
		return crowdOf(args[1], args[2:])
	case len(args) < 3 || len(args) > 4 || mode != "host" && modes[mode] == nil:
		return errors.New("usage: see the comment of bench/swarm")
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if mode == "host" {
		return beHost(ctx, args[1], n, args[len(args)-1])
	}
	last := 1
	if len(args) > 3 {
		if last, err = strconv.Atoi(args[3]); err != nil {
			return err
		}
	}
	return modes[mode](ctx, args[1], n, last)
}

// hold forms a round that stays for so many seconds, with workers that report steps or without.
func hold(ctx context.Context, addr string, n, seconds int, train bool) error {
	s, err := form(ctx, addr, n, "hold")
	if err != nil {
		return err
	}
	defer s.leave()
	if train {
		s.train()
	}
	fmt.Println("held")
	time.Sleep(time.Duration(seconds) * time.Second)
	return nil
}

// figures are what one round took, in seconds.
type figures struct {
	Nodes     int     `json:"nodes"`
	Connect   float64 `json:"connect_s"`    // all nodes say hello, together, until the last is welcome
	FirstJoin float64 `json:"first_join_s"` // first join sent to last outcome received
	LastJoin  float64 `json:"last_join_s"`  // last join sent to last outcome received
	CPU       float64 `json:"cpu_s"`        // of this process, for the joins
}

func meet(ctx context.Context, how, addr string, n, rounds int) error {
	for round := range rounds {
		began := time.Now()
		s, err := gather(ctx, addr, n, fmt.Sprintf("%s-%d-%d-%d", how, n, os.Getpid(), round), func(i int, p *params.Params) member.Observer {
			if how == "racks" {
				p.Segment, p.Topology = 8, fmt.Sprint("rack", i%max(1, n/40))
			}
			return deaf{}
		})
		if err != nil {
			return err
		}
		connected := time.Since(began)
		f, err := s.join(ctx)
		s.leave()
		if err != nil {
			return err
		}
		f.Nodes, f.Connect = n, connected.Seconds()
		if err := json.NewEncoder(os.Stdout).Encode(f); err != nil {
			return err
		}
	}
	return nil
}

// add prints what one add takes, and how many are done in a second by all.
func add(ctx context.Context, addr string, n, adds int) error {
	s, err := form(ctx, addr, n, runOf("add", n))
	if err != nil {
		return err
	}
	defer s.leave()
	began := time.Now()
	if err := each(n, func(i int) error { return repeat(ctx, s[i], adds, addition("sum")) }); err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	return json.NewEncoder(os.Stdout).Encode(map[string]float64{"each_s": took / float64(adds), "rate": float64(n*adds) / took})
}

// get prints what one get takes while the other nodes add.
func get(ctx context.Context, addr string, n, gets int) error {
	s, err := form(ctx, addr, n, runOf("get", n))
	if err != nil {
		return err
	}
	defer s.leave()
	if err := repeat(ctx, s[0], 1, addition("read")); err != nil {
		return err
	}
	busy, stop := context.WithCancel(ctx)
	defer stop()
	var took float64
	err = each(n, func(i int) (err error) {
		if i > 0 {
			for busy.Err() == nil && err == nil {
				err = repeat(ctx, s[i], 1, addition("sum"))
			}
			return err
		}
		defer stop()
		began := time.Now()
		err = repeat(ctx, s[0], gets, rendezvous.KeyRequest{Round: 1, Op: store.OpGet, Keys: []string{"read"}})
		took = time.Since(began).Seconds()
		return err
	})
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]float64{"each_s": took / float64(gets)})
}

func addition(key string) rendezvous.Event {
	return rendezvous.KeyRequest{Round: 1, Op: store.OpAdd, Keys: []string{key}, Amount: 1}
}

// repeat asks for the same again and again, each time when it has the answer.
func repeat(ctx context.Context, c *client.Client, times int, ev rendezvous.Event) error {
	for range times {
		if _, err := c.Start(ev).Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// swarm is many nodes of one run.
type swarm []*client.Client

// gather connects n nodes, all at once. Each has parameters of its own, and who is told what changes.
func gather(ctx context.Context, addr string, n int, runID string, with func(i int, p *params.Params) member.Observer) (swarm, error) {
	s := make(swarm, n)
	err := each(n, func(i int) error {
		p := params.Default()
		p.RunID, p.Min, p.Max, p.IsHost = runID, n, n, new(bool)
		meetAt(&p, addr)
		observer := with(i, &p)
		s[i] = client.New(p, observer, nil, nil)
		return s[i].Connect(ctx)
	})
	if err != nil {
		s.leave()
		return nil, err
	}
	return s, nil
}

// runOf is the id of a run that no other process has.
func runOf(what string, n int) string { return fmt.Sprintf("%s-%d-%d", what, n, os.Getpid()) }

func form(ctx context.Context, addr string, n int, runID string) (swarm, error) {
	s, err := gather(ctx, addr, n, runID, toDeaf)
	if err != nil {
		return nil, err
	}
	if _, err := s.join(ctx); err != nil {
		s.leave()
		return nil, err
	}
	return s, nil
}

func (s swarm) join(ctx context.Context) (figures, error) {
	places, f, err := s.place(ctx)
	ranks := make([]bool, len(s))
	for _, o := range places {
		if o.World != len(s) || ranks[o.Rank] {
			return f, fmt.Errorf("a wrong outcome: %+v", o)
		}
		ranks[o.Rank] = true
	}
	return f, err
}

// place lets all nodes join, one after the other without waiting for an answer.
func (s swarm) place(ctx context.Context) (places []rendezvous.Outcome, f figures, err error) {
	calls := make([]*member.Call, len(s))
	cpu, first := cpuTime(), time.Now()
	for i, c := range s {
		calls[i] = c.Start(rendezvous.Join{NodeRank: -1, RankHint: -1, StoreAddr: "127.0.0.1", StorePort: 1 + i})
	}
	last := time.Now()
	for _, call := range calls {
		result, err := call.Wait(ctx)
		if err != nil {
			return nil, f, err
		}
		places = append(places, result.(rendezvous.Outcome))
	}
	return places, figures{FirstJoin: time.Since(first).Seconds(), LastJoin: time.Since(last).Seconds(), CPU: cpuTime() - cpu}, nil
}

// train lets each node carry what it would of eight workers that take a second a step.
func (s swarm) train() {
	began := time.Now()
	report := func() *training.Report {
		passed := time.Since(began)
		step := int64(passed / time.Second)
		return &training.Report{
			Round: 1, Workers: 8, Reporting: 8, Smallest: step, Largest: step, SinceFirst: passed,
			SinceChange: passed % time.Second, SinceSlowest: passed % time.Second, PerStep: time.Second,
		}
	}
	for _, c := range s {
		c.CarryTraining(report)
	}
}

func (s swarm) leave() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = each(len(s), func(i int) error {
		if s[i] == nil {
			return nil
		}
		return s[i].Close(ctx)
	})
}

// each calls f for each of n nodes at one time and returns one of the errors.
func each(n int, f func(i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return cmp.Or(errs...)
}

type deaf struct{}

func toDeaf(int, *params.Params) member.Observer { return deaf{} }

func (deaf) Updated(rendezvous.MembershipUpdate) {}
func (deaf) Progressed(rendezvous.Progress)      {}
func (deaf) Dropped(*rendezvous.Error)           {}
func (deaf) ConnectionChanged(error)             {}
