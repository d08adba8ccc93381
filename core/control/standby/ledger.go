package standby

import (
	"maps"
	"slices"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/pack"
)

// Limits of the facts that servers of many runs keep for each other. All of them are sent in one
// frame.
const (
	maxLedger     = 1 << 20           // bytes, of all runs together
	fullLedger    = maxLedger / 4 * 3 // from here on no run begins, so that the present ones may grow
	ledgerPerRun  = 16                // what a run takes beside its id and its facts
	maxLedgerRuns = maxLedger / ledgerPerRun
)

// ledger are the facts of all runs of servers that succeed each other, and how much of them the voters
// have accepted. One proposal is on its way at a time: what changes meanwhile is in the
// next one. It is guarded by Group.mu.
type ledger struct {
	name  string            // of the group, as nodes know it; drawn by the founder
	facts map[string][]byte // encoded, by run
	size  int

	changes uint64 // so far
	sent    uint64 // as many of these were proposed
	number  uint64 // of the proposal under way; 0: there is none
	said    uint64 // as many are confirmed
}

// set notes the facts of a run. It returns which change brings them to the voters, and whether they
// are kept whole.
func (l *ledger) set(run string, f rendezvous.Facts) (change uint64, whole bool) {
	whole = true
	now := rendezvous.EncodeFacts(f)
	if !l.fits(run, now) {
		whole, f.Directives = false, rendezvous.DirectiveFacts{}
		if now = rendezvous.EncodeFacts(f); !l.fits(run, now) {
			return l.changes, false
		}
	}
	if old, known := l.facts[run]; !known || !slices.Equal(old, now) {
		l.size += l.grows(run, now)
		l.facts[run] = now
		l.changes++
	}
	return l.changes, whole
}

func (l *ledger) fits(run string, facts []byte) bool { return l.size+l.grows(run, facts) <= maxLedger }

func (l *ledger) grows(run string, facts []byte) int {
	old, known := l.facts[run]
	if known {
		return len(facts) - len(old)
	}
	return len(facts) + len(run) + ledgerPerRun
}

// forget takes a run out.
func (l *ledger) forget(run string) {
	if old, known := l.facts[run]; known {
		l.size -= len(old) + len(run) + ledgerPerRun
		delete(l.facts, run)
		l.changes++
	}
}

func (l *ledger) encode() []byte {
	return pack.Append(nil, func(p *pack.Packer) {
		p.List(2)
		p.Text(l.name)
		p.List(len(l.facts))
		for _, run := range slices.Sorted(maps.Keys(l.facts)) {
			p.List(2)
			p.Text(run)
			p.Bytes(l.facts[run])
		}
	})
}

// decodeLedger decodes the result of encode. Facts that cannot be decoded are an error.
func decodeLedger(value []byte) (l ledger, err error) {
	l.facts = map[string][]byte{}
	if len(value) == 0 {
		return l, nil
	}
	u := pack.NewUnpacker(value)
	defer u.Release()
	u.Open()
	l.name = u.Text(rendezvous.MaxNameLen)
	type entry struct {
		run   string
		facts []byte
	}
	for _, e := range pack.Lists(u, maxLedgerRuns, "runs", func() entry { return entry{u.Text(rendezvous.MaxNameLen), u.Bytes(maxLedger)} }) {
		if _, wrong := rendezvous.DecodeFacts(e.facts); wrong != nil {
			err = wrong
			continue
		}
		l.forget(e.run)
		l.size += l.grows(e.run, e.facts)
		l.facts[e.run] = e.facts
	}
	u.Close()
	u.End()
	if u.Err() != nil {
		err = u.Err()
	}
	l.changes = 0
	return l, err
}

// nameOf reads the name of the group alone.
func nameOf(value []byte) string {
	if len(value) == 0 {
		return ""
	}
	u := pack.NewUnpacker(value)
	defer u.Release()
	u.Open()
	name := u.Text(rendezvous.MaxNameLen)
	if u.Err() != nil {
		return ""
	}
	return name
}
