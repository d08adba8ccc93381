package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"rallypoint/core/control/client"
	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
)

// direct prints how long a directive takes until the last node knows the step on which all
// have agreed, and until it is over at all, each of so many times. The nodes begin to save
// when all know the step: saving takes a job many times what agreeing does.
func direct(ctx context.Context, addr string, n, times int) error {
	var agreed, over atomic.Int64
	last := make(chan time.Time, 1)
	count := func(c *atomic.Int64) {
		if c.Add(1)%int64(n) == 0 {
			last <- time.Now()
		}
	}
	nodes := make([]*directed, n)
	s, err := gatherWith(ctx, addr, n, fmt.Sprintf("direct-%d-%d", n, os.Getpid()), func(i int) member.Observer {
		nodes[i] = &directed{rank: i, agreed: func() { count(&agreed) }, over: func() { count(&over) }}
		return nodes[i]
	})
	if err != nil {
		return err
	}
	defer s.leave()
	if _, err := s.join(ctx); err != nil {
		return err
	}
	for i, node := range nodes {
		node.client.Store(s[i])
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
			if i == 0 {
				for _, node := range nodes {
					node.save()
				}
			}
		}
		if err := json.NewEncoder(os.Stdout).Encode(map[string]float64{"agreed_s": took[0], "over_s": took[1]}); err != nil {
			return err
		}
	}
	return nil
}

// directed is a node that answers at once at which step its workers are, and has saved when
// save says so.
type directed struct {
	deaf
	rank         int
	agreed, over func()
	client       atomic.Pointer[client.Client]
	was          rendezvous.DirectiveNotice
	origin       string
}

func (d *directed) Updated(u rendezvous.MembershipUpdate) {
	if u.Directive == d.was {
		return
	}
	d.was, d.origin = u.Directive, u.Facts.Origin
	switch now := d.was; {
	case now.ID == "":
		d.over()
	case now.Agreed:
		d.agreed()
	case now.Round > 0:
		d.client.Load().Start(d.report())
	}
}

func (d *directed) report() rendezvous.ReportDirective {
	return rendezvous.ReportDirective{ID: d.was.ID, Generation: d.origin, Round: d.was.Round, Step: int64(d.rank)}
}

func (d *directed) save() {
	report := d.report()
	report.Saved = true
	d.client.Load().Start(report)
}
