package tcpstore

import "sync/atomic"

// counters are the server's running numbers. All fields only grow, except open.
type counters struct {
	open     atomic.Int64
	accepted atomic.Uint64
	bytesIn  atomic.Uint64
	bytesOut atomic.Uint64
	ops      [numOpcodes]atomic.Uint64
	refused  [numReasons]atomic.Uint64
}

// Stats is a server's numbers at one moment. Apart from those marked "now" they
// count from the start of the server, over all its engines.
type Stats struct {
	Connections int    // open now
	Accepted    uint64 // connections accepted
	BytesIn     uint64 // read from connections
	BytesOut    uint64 // written to connections

	// Ops counts requests by the name of their operation ("SET", "MULTI_GET",
	// ...); all names are present.
	Ops map[string]uint64

	// Refused counts connections that the server closed, by Reason; all names
	// are present.
	Refused map[string]uint64

	Keys    int   // in the current engine now
	Bytes   int64 // in the current engine now, see store.Engine.Bytes
	Waiters int   // pending waits on the current engine now
}

// snapshot adds up counters.
func snapshot(all []*counters) Stats {
	s := Stats{
		Ops:     make(map[string]uint64, numOpcodes),
		Refused: make(map[string]uint64, numReasons),
	}
	for _, c := range all {
		s.Connections += int(c.open.Load())
		s.Accepted += c.accepted.Load()
		s.BytesIn += c.bytesIn.Load()
		s.BytesOut += c.bytesOut.Load()
		for op := range c.ops {
			s.Ops[opcode(op).String()] += c.ops[op].Load()
		}
		for reason := range c.refused {
			s.Refused[Reason(reason).String()] += c.refused[reason].Load()
		}
	}
	return s
}
