package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
)

// stop prints how long it takes from a node's word that its workers have failed until the last
// node of the round has it and would signal its own, each of so many times, a round between.
func stop(ctx context.Context, addr string, n, times int) error {
	last := make(chan time.Time, 1)
	var heard atomic.Int64
	s, err := gather(ctx, addr, n, runOf("stop", n), func(int, *params.Params) member.Observer {
		return &stopped{hear: func() {
			if heard.Add(1)%int64(n) == 0 {
				last <- time.Now()
			}
		}}
	})
	if err != nil {
		return err
	}
	defer s.leave()
	for i := range times {
		places, _, err := s.place(ctx)
		if err != nil {
			return err
		}
		o := places[0]
		cpu, began := cpuTime(), time.Now()
		s[i%n].Start(rendezvous.AnnounceStop{Generation: o.Generation, Round: o.Round, Reason: "it is measured"})
		select {
		case at := <-last:
			f := map[string]float64{"stopped_s": at.Sub(began).Seconds(), "cpu_s": cpuTime() - cpu}
			if err := json.NewEncoder(os.Stdout).Encode(f); err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("%d of %d nodes have heard of the stop: %w", heard.Load()%int64(n), n, ctx.Err())
		}
	}
	return nil
}

// stopped is a node that takes the first word of each round's stop.
type stopped struct {
	deaf
	round uint64 // the last one that was stopped
	hear  func()
}

func (s *stopped) Updated(u rendezvous.MembershipUpdate) {
	if u.Stop.Round > s.round {
		s.round = u.Stop.Round
		s.hear()
	}
}
