package static

import (
	"rallypoint/internal/promtext"
	"rallypoint/roundstore"
	"rallypoint/tcpstore"
)

// Expose implements agent.Rendezvous.
func (s *Static) Expose(b *promtext.Buffer) {
	s.mu.Lock()
	server := s.server
	s.mu.Unlock()
	var stats tcpstore.Stats
	if server != nil {
		stats = server.Stats()
	}
	roundstore.Expose(b, stats, s.protection.Refused())
}
