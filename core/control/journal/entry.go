package journal

import (
	"fmt"

	"rallypoint/internal/pack"
)

const (
	// maxEntry bounds an entry that has more than one event.
	maxEntry = 1 << 20
	// entryCost is about what an entry takes for a run, or an event, beside the bytes of it.
	entryCost = 32
	// maxItems bounds the lists of an entry; each item has a byte at least.
	maxItems = 1 << 20
	maxBytes = 1 << 31
	maxID    = 1 << 10
)

// Entries are changes as the servers of a list send them to each other: at least one, in order.
func Entries(changes []WriteBatch) (entries [][]byte) {
	var part []WriteBatch
	size := 0
	end := func() {
		if len(part) > 0 {
			entries = append(entries, encode(part))
		}
		part, size = nil, 0
	}
	for _, c := range changes {
		now := WriteBatch{Run: c.Run, Snapshot: c.Snapshot, First: c.First}
		if size += entryCost; c.Snapshot != nil {
			size += len(c.Snapshot.State) + len(c.Snapshot.ID)
		}
		for i, ev := range c.Events {
			if size += len(ev) + entryCost; size > maxEntry && (len(part) > 0 || len(now.Events) > 0) {
				part = append(part, now)
				end()
				now, size = WriteBatch{Run: c.Run, First: c.First + uint64(i)}, len(ev)+2*entryCost
			}
			now.Events = append(now.Events, ev)
		}
		now.Forget = c.Forget
		part = append(part, now)
	}
	end()
	return entries
}

func encode(changes []WriteBatch) []byte {
	return pack.Append(nil, func(p *pack.Packer) {
		p.List(len(changes))
		for _, c := range changes {
			p.List(7)
			p.Uint(c.Run)
			s := c.Snapshot
			if s == nil {
				s = &Snapshot{}
			}
			p.Text(s.ID)
			p.Uint(s.Through)
			p.Bytes(s.State)
			p.Uint(c.First)
			p.Values(c.Events)
			p.Bool(c.Forget)
		}
	})
}

func decode(entry []byte) ([]WriteBatch, error) {
	u := pack.NewUnpacker(entry)
	defer u.Release()
	changes := pack.Lists(u, maxItems, "runs", func() WriteBatch {
		c := WriteBatch{Run: u.Uint()}
		s := Snapshot{ID: u.Text(maxID), Through: u.Uint(), State: u.Bytes(maxBytes)}
		if len(s.State) > 0 {
			c.Snapshot = &s
		}
		c.First, c.Events, c.Forget = u.Uint(), u.Values(maxItems, maxBytes), u.Bool()
		return c
	})
	u.End()
	if err := u.Err(); err != nil {
		return nil, fmt.Errorf("an entry of the servers' log: %w", err)
	}
	return changes, nil
}
