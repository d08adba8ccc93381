package static

import (
	"context"

	"rallypoint/core/rendezvous"
	"rallypoint/tcpstore"
)

// SetClosed ends the run for this node: its set of nodes is fixed.
func (s *Static) SetClosed(_ context.Context, reason string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.reason = true, reason
	return nil
}

// Shutdown implements agent.Rendezvous. The other nodes learn of a failure. Node
// 0 waits for the others after a success and after a failure, a few seconds at most.
func (s *Static) Shutdown(ctx context.Context, ending rendezvous.Ending, reason string) error {
	return s.end(func(client *tcpstore.Client, round uint64) {
		ctx, cancel := context.WithTimeout(ctx, linger)
		defer cancel()
		if ending == rendezvous.EndFailed {
			s.tellFailure(ctx, client, round, reason)
		}
		s.depart(ctx, client, round, ending)
	})
}

// Close ends everything without a word.
func (s *Static) Close() error { return s.end(nil) }

func (s *Static) end(farewell func(*tcpstore.Client, uint64)) error {
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return nil
	}
	s.stopped = true
	client, round := s.client, s.round
	s.mu.Unlock()
	if client != nil && farewell != nil {
		farewell(client, round)
	}
	s.endLife()
	s.joining <- struct{}{} // Next has ended; the token stays, no other begins
	s.watch.Wait()
	s.mu.Lock()
	client, way, server, sides := s.client, s.way, s.server, s.sides
	s.mu.Unlock()
	if client != nil {
		_ = client.Close()
	}
	if way != nil {
		_ = way.Close()
	}
	if server != nil {
		err := server.Close()
		sides.Close()
		return err
	}
	return nil
}

// depart tells node 0 that this node needs it no more; node 0 waits until all
// others have.
func (s *Static) depart(ctx context.Context, client *tcpstore.Client, round uint64, ending rendezvous.Ending) {
	others := int64(s.p.Max - 1)
	gone, all := s.key(round, "departed"), s.key(round, "departed/all")
	switch {
	case others == 0:
	case s.p.NodeRank > 0:
		if n, err := client.Add(ctx, gone, 1); err == nil && n == others {
			_ = client.Set(ctx, all, []byte("1"))
		}
	case ending != rendezvous.EndLeave || s.Closed(): // who ended the run has yet to depart, too
		_ = client.Wait(ctx, []string{all})
	}
}
