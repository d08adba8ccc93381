package static

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/printable"
	"rallypoint/tcpstore"
)

// tellStop begins what a node tells that is about to stop its workers, before its rank.
const tellStop = "stop "

// AnnounceStop implements agent.Rendezvous by the key that ends the round. A node that
// leaves tells nothing: the others cannot go on without it, and may end well.
func (s *Static) AnnounceStop(ctx context.Context, stop rendezvous.AnnounceStop) error {
	s.mu.Lock()
	client, now := s.client, s.round
	s.mu.Unlock()
	switch {
	case stop.Leaving:
		return nil
	case now != stop.Round || client == nil:
		return rendezvous.Errorf(rendezvous.CodeRoundOver, "run %q: node %d is not in round %d", s.p.RunID, s.p.NodeRank, stop.Round)
	}
	_, err := s.tell(ctx, client, stop.Round, tellStop+strconv.Itoa(s.p.NodeRank)+": "+stop.Reason)
	if err != nil {
		return fmt.Errorf("run %q: node 0 at %s: %w", s.p.RunID, s.place(), err)
	}
	return nil
}

// Stopped implements agent.Rendezvous.
func (s *Static) Stopped(round uint64) rendezvous.RoundStop {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop.Round != round {
		return rendezvous.RoundStop{}
	}
	return s.stop
}

// parseStop reads what AnnounceStop told; ok is false for anything else.
func (s *Static) parseStop(text string, round uint64) (stop rendezvous.RoundStop, ok bool) {
	rest, is := strings.CutPrefix(text, tellStop)
	number, reason, found := strings.Cut(rest, ": ")
	rank, err := strconv.Atoi(number)
	if !is || !found || err != nil || rank < 0 || rank >= s.p.Max {
		return rendezvous.RoundStop{}, false
	}
	return rendezvous.RoundStop{Round: round, Rank: rank, Reason: printable.Text(reason)}, true
}

// tellFailure ends the run for all nodes. Where the round is stopped already, they learn it
// while they wait for the next round to be complete, which it will not be.
func (s *Static) tellFailure(ctx context.Context, client *tcpstore.Client, round uint64, reason string) {
	what := cutTold(tellFailed + reason)
	if got, err := s.tell(ctx, client, round, what); err == nil && !strings.HasPrefix(got, tellFailed) {
		_, _ = client.CompareSet(ctx, s.key(round+1, "complete"), nil, []byte(what))
	}
}

// awaitNextRound waits, behind the stop of a round, until the next one is complete or another
// node has ended the run.
func (s *Static) awaitNextRound(ctx context.Context, client *tcpstore.Client, round uint64) {
	text, err := client.Get(ctx, s.key(round+1, "complete"))
	if err == nil {
		_ = s.ended(string(text))
	}
}

// ended records that a node has ended the run, if the text says so, and returns the error
// of a node that wants to go on.
func (s *Static) ended(text string) error {
	why, failed := strings.CutPrefix(cutTold(text), tellFailed)
	if !failed {
		return nil
	}
	why = printable.Text(why)
	s.mu.Lock()
	s.over, s.closed, s.reason = true, true, why
	s.mu.Unlock()
	s.news.Set()
	return s.closedError(why)
}

func (s *Static) closedError(why string) error {
	return rendezvous.Errorf(rendezvous.CodeClosed, "run %q is over: %s", s.p.RunID, why)
}

// cutTold keeps a text within what nodes tell each other.
func cutTold(text string) string { return text[:min(len(text), maxTold)] }
