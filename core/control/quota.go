package control

import (
	"cmp"
	"strings"

	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
)

// Quota bounds what one run may take of a server. A zero field is the default.
type Quota struct {
	Nodes       int   // live nodes, spares too
	Connections int   // open connections of nodes
	Keys        int   // of the agents, in one round
	KeyBytes    int64 // of these keys and their values
}

// DefaultQuota is far above what a job needs.
var DefaultQuota = Quota{
	Nodes:       1 << 17,
	Connections: 1 << 17,
	Keys:        rendezvous.DefaultMaxKeys,
	KeyBytes:    rendezvous.DefaultMaxKeyBytes,
}

// keys is what the machine itself keeps to.
func (q Quota) keys() store.Limits { return store.Limits{MaxBytes: q.KeyBytes, MaxEntries: q.Keys} }

// overQuota refuses a hello that the run has no room for; mu is held.
func (r *run) overQuota(h rendezvous.Hello) *rendezvous.Error {
	if r.broken != nil {
		return r.broken
	}
	q := r.server.cfg.Quota
	connections := len(r.conns)
	if r.conns[h.Session] != nil {
		connections-- // that one ends
	}
	if most := cmp.Or(q.Connections, DefaultQuota.Connections); connections+r.hellos >= most {
		return r.noRoom("connections", "--max-connections", most)
	}
	if most := cmp.Or(q.Nodes, DefaultQuota.Nodes); !r.machine.Has(h.Session) && !r.machine.HasNode(h.Node) && r.machine.Live()+r.hellos >= most {
		return r.noRoom("nodes", "--max-nodes", most)
	}
	return nil
}

func (r *run) noRoom(what, flag string, most int) *rendezvous.Error {
	if most == 1 {
		what = strings.TrimSuffix(what, "s")
	}
	return rendezvous.Errorf(rendezvous.CodeTooLarge,
		"run %q has %d %s, which is its quota on the control plane at %s: stop nodes that are not needed, or start `rallypoint serve` with a higher %s",
		r.id, most, what, r.server.Addr(), flag)
}
