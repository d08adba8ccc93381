package roundstore

import (
	"maps"
	"slices"
	"strings"

	"rallypoint/internal/promtext"
	"rallypoint/tcpstore"
)

// refused counts the connections that the stores and the forwarders have refused, by reason.
func (r *RoundStores) refused() (stores, forwarders map[string]uint64) {
	return r.totals().Refused, r.protected.refused()
}

// Expose writes the numbers of all round stores there have been, and of the ways to those of
// other nodes, for /metrics of a process.
func (r *RoundStores) Expose(b *promtext.Buffer) {
	t := r.totals()
	b.Single("rallypoint_round_store_connections", "gauge", "Open connections of this process's round stores.", float64(t.Connections))
	b.Single("rallypoint_round_store_keys", "gauge", "Keys in this process's round stores.", float64(t.Keys))
	b.Single("rallypoint_round_store_waits", "gauge", "Requests that wait for a key in this process's round stores.", float64(t.Waiters))
	b.Single("rallypoint_round_store_received_bytes_total", "counter", "Bytes that came in at round stores.", float64(t.BytesIn))
	b.Single("rallypoint_round_store_sent_bytes_total", "counter", "Bytes that round stores sent.", float64(t.BytesOut))
	expose := func(name, help, label string, counts map[string]uint64) {
		b.Family(name, "counter", help)
		for _, value := range slices.Sorted(maps.Keys(counts)) {
			b.Sample(name, float64(counts[value]), label, strings.ToLower(value))
		}
	}
	expose("rallypoint_round_store_operations_total", "Requests to round stores, by operation.", "operation", t.Ops)
	expose("rallypoint_round_store_refused_total", "Connections that round stores closed, by reason.", "reason", t.Refused)
	expose("rallypoint_forwarder_refused_total", "Connections that the ways to other nodes' round stores, and to programs beside this one's, closed, by reason.", "reason", r.protected.refused())
}

// totals adds up the stores that are open and those that were.
func (r *RoundStores) totals() tcpstore.Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := tcpstore.Stats{Ops: map[string]uint64{}, Refused: map[string]uint64{}}
	addStats(&t, r.past)
	for k := range r.open {
		addStats(&t, k.server.Stats())
	}
	return t
}

func addStats(sum *tcpstore.Stats, s tcpstore.Stats) {
	sum.Connections += s.Connections
	sum.Accepted += s.Accepted
	sum.BytesIn += s.BytesIn
	sum.BytesOut += s.BytesOut
	sum.Keys += s.Keys
	sum.Bytes += s.Bytes
	sum.Waiters += s.Waiters
	for name, n := range s.Ops {
		sum.Ops[name] += n
	}
	for name, n := range s.Refused {
		sum.Refused[name] += n
	}
}

// forgetLocked moves the numbers of a closed server to the past.
func (r *RoundStores) forgetLocked(k *socket) {
	delete(r.open, k)
	last := k.server.Stats()
	last.Connections, last.Keys, last.Bytes, last.Waiters = 0, 0, 0, 0
	addStats(&r.past, last)
}
