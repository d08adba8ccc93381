package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"rallypoint/core/rendezvous"
)

// direct prints how long a directive takes until the last node knows the step on which all
// have agreed, and until it is over at all, each of so many times. The nodes begin to save
// when all know the step: saving takes a job many times what agreeing does.
func direct(ctx context.Context, out io.Writer, addr string, n, times int) error {
	var s *bareSwarm
	report := func(n *bareNode, saved bool) error {
		d := n.update.Directive
		return s.request(n, rendezvous.ReportDirective{
			ID: d.ID, Generation: n.update.Facts.Origin, Round: d.Round, Step: int64(n.place.Rank), Saved: saved,
		})
	}
	s, err := gatherBare(ctx, addr, n, runOf("direct", n))
	if err != nil {
		return err
	}
	defer s.leave()
	s.told = func(n *bareNode) error {
		if d := n.update.Directive; d.Round > 0 && !d.Agreed {
			return report(n, false) // its workers are held at once
		}
		return nil
	}
	for range times {
		cpu, began := cpuTime(), time.Now()
		id := fmt.Sprint(began.UnixNano())
		if err := s.request(s.nodes[0], rendezvous.GiveDirective{Directive: rendezvous.Direct{
			ID: id, Kind: rendezvous.DirectiveSave, Within: time.Minute, Reason: "it is measured",
		}}); err != nil {
			return err
		}
		if err := s.await(ctx, "the step", func(n *bareNode) bool { return n.update.Directive.ID == id && n.update.Directive.Agreed }); err != nil {
			return err
		}
		agreed := time.Since(began)
		for _, n := range s.nodes {
			if err := report(n, true); err != nil {
				return err
			}
		}
		if err := s.await(ctx, "the end", func(n *bareNode) bool { return n.update.Directive.ID == "" }); err != nil {
			return err
		}
		took := map[string]float64{"agreed_s": agreed.Seconds(), "over_s": time.Since(began).Seconds(), "cpu_s": cpuTime() - cpu}
		if err := json.NewEncoder(out).Encode(took); err != nil {
			return err
		}
	}
	return nil
}
