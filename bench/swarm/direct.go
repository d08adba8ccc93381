package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"rallypoint/core/control/client"
	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
)

// direct prints how long a directive takes until the last node knows the step on which all
// have agreed, and until it is over at all, each of so many times.
func direct(ctx context.Context, addr string, n, times int) error {
	nodes := make([]*directed, n)
	s, err := gatherWith(ctx, addr, n, fmt.Sprintf("direct-%d-%d", n, os.Getpid()), func(i int) member.Observer {
		nodes[i] = &directed{rank: i, updates: make(chan rendezvous.MembershipUpdate, 64)}
		return nodes[i]
	})
	if err != nil {
		return err
	}
	defer s.leave()
	if _, err := s.join(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		wg.Wait()
	}()
	var agreed, over atomic.Int64
	last := make(chan time.Time, 2)
	count := func(c *atomic.Int64) {
		if c.Add(1)%int64(n) == 0 {
			last <- time.Now()
		}
	}
	for i, node := range nodes {
		wg.Go(func() { node.follow(ctx, s[i], func() { count(&agreed) }, func() { count(&over) }) })
	}
	for range times {
		began := time.Now()
		_, err := s[0].Start(rendezvous.GiveDirective{Directive: rendezvous.Direct{
			ID: fmt.Sprint(began.UnixNano()), Kind: rendezvous.DirectiveSave, Within: time.Minute, Reason: "it is measured",
		}}).Wait(ctx)
		if err != nil {
			return err
		}
		var took [2]float64
		for i := range took {
			select {
			case at := <-last:
				took[i] = at.Sub(began).Seconds()
			case <-ctx.Done():
				return fmt.Errorf("%d of %d nodes know the step, %d the end: %w", agreed.Load(), n, over.Load(), ctx.Err())
			}
		}
		if err := json.NewEncoder(os.Stdout).Encode(map[string]float64{"agreed_s": took[0], "over_s": took[1]}); err != nil {
			return err
		}
	}
	return nil
}

// directed is a node that answers at once what it is asked of a directive.
type directed struct {
	deaf
	rank    int
	updates chan rendezvous.MembershipUpdate
}

func (d *directed) Updated(u rendezvous.MembershipUpdate) { d.updates <- u }

func (d *directed) follow(ctx context.Context, c *client.Client, agreed, over func()) {
	var was rendezvous.DirectiveNotice
	for {
		var u rendezvous.MembershipUpdate
		select {
		case u = <-d.updates:
		case <-ctx.Done():
			return
		}
		now := u.Directive
		report := rendezvous.ReportDirective{ID: now.ID, Generation: u.Facts.Origin, Round: now.Round, Step: int64(d.rank)}
		switch {
		case now == was:
		case now.ID == "":
			over()
		case now.Round > 0 && !now.Agreed:
			c.Start(report)
		case now.Agreed:
			agreed()
			report.Saved = true
			c.Start(report)
		}
		was = now
	}
}
