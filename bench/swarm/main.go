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

func run(args []string) error {
	if len(args) == 2 && args[0] == "probe" {
		return probe(args[1])
	}
	if len(args) < 3 {
		return fmt.Errorf("usage: swarm meet ADDR N [ROUNDS] | swarm racks ADDR N [ROUNDS] | swarm lose ADDR N | swarm silence ADDR N | swarm hold ADDR N SECONDS | swarm train ADDR N SECONDS | swarm direct ADDR N TIMES | swarm stop ADDR N TIMES | swarm add ADDR N ADDS | swarm get ADDR N GETS | swarm probe ADDR | swarm crowd ADDR SILENT SLOW DRIPS RATE | swarm handshakes ADDR N")
	}
	if len(args) == 6 && args[0] == "crowd" {
		return crowdOf(args[1], args[2:])
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	last := 1
	if len(args) > 3 && args[0] != "host" {
		if last, err = strconv.Atoi(args[3]); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch args[0] {
	case "lose":
		return lose(ctx, args[1], n, os.Kill)
	case "silence":
		return lose(ctx, args[1], n, syscall.SIGSTOP)
	case "host":
		return beHost(ctx, args[1], n, args[len(args)-1])
	case "meet", "racks":
		for i := range last {
			if err := meet(ctx, args[0], args[1], n, i); err != nil {
				return err
			}
		}
		return nil
	case "hold", "train":
		return hold(ctx, args[1], n, time.Duration(last)*time.Second, args[0] == "train")
	case "handshakes":
		return handshakes(args[1], n)
	case "add":
		return add(ctx, args[1], n, last)
	case "direct":
		return direct(ctx, os.Stdout, args[1], n, last)
	case "stop":
		return stop(ctx, args[1], n, last)
	case "get":
		return get(ctx, args[1], n, last)
	}
	return fmt.Errorf("there is no mode %q", args[0])
}

// hold forms a round that stays for so long, with workers that report steps or without.
func hold(ctx context.Context, addr string, n int, stay time.Duration, train bool) error {
	s, err := gather(ctx, addr, n, "hold")
	if err != nil {
		return err
	}
	defer s.leave()
	if _, err := s.join(ctx); err != nil {
		return err
	}
	if train {
		s.train()
	}
	fmt.Println("held")
	time.Sleep(stay)
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

func meet(ctx context.Context, how, addr string, n, round int) error {
	began := time.Now()
	in := func(int, *params.Params) {}
	if how == "racks" {
		in = func(i int, p *params.Params) { p.Segment, p.Topology = 8, fmt.Sprint("rack", i%max(1, n/40)) }
	}
	s, err := gatherWith(ctx, addr, n, fmt.Sprintf("%s-%d-%d-%d", how, n, os.Getpid(), round), func(int) member.Observer { return deaf{} }, in)
	if err != nil {
		return err
	}
	defer s.leave()
	connected := time.Since(began)
	f, err := s.join(ctx)
	if err != nil {
		return err
	}
	f.Nodes, f.Connect = n, connected.Seconds()
	return json.NewEncoder(os.Stdout).Encode(f)
}

// add prints what one add takes, and how many are done in a second by all.
func add(ctx context.Context, addr string, n, adds int) error {
	s, err := gather(ctx, addr, n, fmt.Sprintf("add-%d-%d", n, os.Getpid()))
	if err != nil {
		return err
	}
	defer s.leave()
	if _, err := s.join(ctx); err != nil {
		return err
	}
	errs := make([]error, n)
	began := time.Now()
	var wg sync.WaitGroup
	for i, c := range s {
		wg.Go(func() { errs[i] = repeat(ctx, c, adds, addition("sum")) })
	}
	wg.Wait()
	took := time.Since(began).Seconds()
	if err := cmp.Or(errs...); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]float64{"each_s": took / float64(adds), "rate": float64(n*adds) / took})
}

// get prints what one get takes while the other nodes add.
func get(ctx context.Context, addr string, n, gets int) error {
	s, err := gather(ctx, addr, n, fmt.Sprintf("get-%d-%d", n, os.Getpid()))
	if err != nil {
		return err
	}
	defer s.leave()
	if _, err := s.join(ctx); err != nil {
		return err
	}
	if err := repeat(ctx, s[0], 1, addition("read")); err != nil {
		return err
	}
	errs := make([]error, n)
	busy, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for i, c := range s[1:] {
		wg.Go(func() {
			for busy.Err() == nil && errs[i+1] == nil {
				errs[i+1] = repeat(ctx, c, 1, addition("sum"))
			}
		})
	}
	began := time.Now()
	errs[0] = repeat(ctx, s[0], gets, rendezvous.KeyRequest{Round: 1, Op: store.OpGet, Keys: []string{"read"}})
	took := time.Since(began).Seconds()
	stop()
	wg.Wait()
	if err := cmp.Or(errs...); err != nil {
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

// gather connects n nodes, all at once.
func gather(ctx context.Context, addr string, n int, runID string) (swarm, error) {
	return gatherWith(ctx, addr, n, runID, func(int) member.Observer { return deaf{} }, func(int, *params.Params) {})
}

// gatherWith is gather of nodes that are told what changes, and have parameters of their own.
func gatherWith(ctx context.Context, addr string, n int, runID string, observe func(i int) member.Observer, with func(i int, p *params.Params)) (swarm, error) {
	s := make(swarm, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range s {
		p := params.Default()
		p.RunID, p.Endpoint, p.Min, p.Max = runID, addr, n, n
		no := false
		p.IsHost = &no
		with(i, &p)
		s[i] = client.New(p, at(p), observe(i), nil, nil)
		wg.Go(func() { errs[i] = s[i].Connect(ctx) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			s.leave()
			return nil, err
		}
	}
	return s, nil
}

// join lets all nodes join, one after the other without waiting for an answer.
func (s swarm) join(ctx context.Context) (figures, error) {
	calls := make([]*member.Call, len(s))
	cpu := cpuTime()
	first := time.Now()
	for i, c := range s {
		calls[i] = c.Start(rendezvous.Join{NodeRank: -1, RankHint: -1, StoreAddr: "127.0.0.1", StorePort: 1 + i})
	}
	last := time.Now()
	ranks := make([]bool, len(s))
	for _, call := range calls {
		result, err := call.Wait(ctx)
		if err != nil {
			return figures{}, err
		}
		o := result.(rendezvous.Outcome)
		if o.World != len(s) || ranks[o.Rank] {
			return figures{}, fmt.Errorf("a wrong outcome: %+v", o)
		}
		ranks[o.Rank] = true
	}
	return figures{FirstJoin: time.Since(first).Seconds(), LastJoin: time.Since(last).Seconds(), CPU: cpuTime() - cpu}, nil
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
	var wg sync.WaitGroup
	for _, c := range s {
		if c != nil {
			wg.Go(func() { _ = c.Close(ctx) })
		}
	}
	wg.Wait()
}

type deaf struct{}

func (deaf) Updated(rendezvous.MembershipUpdate) {}
func (deaf) Progressed(rendezvous.Progress)      {}
func (deaf) Dropped(*rendezvous.Error)           {}
func (deaf) ConnectionChanged(error)             {}
