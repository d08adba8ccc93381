package static

import (
	"rallypoint/agent"
	"rallypoint/internal/promtext"
	"rallypoint/roundstore"
	"rallypoint/tcpstore"
)

var _ agent.Exposer = (*Static)(nil)

// Expose implements agent.Exposer.
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
