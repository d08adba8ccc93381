package raft

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
)

// disk is a Storage whose state is all entries, in order. What was not flushed is lost with the process.
type disk struct {
	now, kept memory
	full      bool
}

type memory struct {
	applied []string
	record  []byte
	entries map[uint64][]byte
}

func (m memory) clone() memory {
	return memory{slices.Clone(m.applied), slices.Clone(m.record), maps.Clone(m.entries)}
}

func (d *disk) Save(c Change) error {
	if c.Replace {
		d.now.applied = nil
		if len(c.Snapshot) > 0 {
			d.now.applied = strings.Split(string(c.Snapshot), " ")
		}
		if c.Record == nil {
			d.now.record, c.Reset = nil, true
		}
	}
	for _, e := range c.Apply {
		d.now.applied = append(d.now.applied, string(e))
	}
	if c.Reset || d.now.entries == nil {
		d.now.entries = map[uint64][]byte{}
	}
	maps.DeleteFunc(d.now.entries, func(i uint64, _ []byte) bool { return c.First > 0 && i >= c.First || i < c.Keep })
	for i, e := range c.Entries {
		if at := c.First + uint64(i); at >= c.Keep {
			d.now.entries[at] = e
		}
	}
	if c.Record != nil {
		d.now.record = c.Record
	}
	return nil
}

func (d *disk) Flush() error {
	if d.full {
		return errors.New("the disk is full")
	}
	d.kept = d.now.clone()
	return nil
}

func (d *disk) Durable() bool             { return true }
func (d *disk) Snapshot() ([]byte, error) { return []byte(strings.Join(d.now.applied, " ")), nil }

// start makes the node of a process that begins with what the disk has kept.
func (d *disk) start(t *testing.T, id Voter, now time.Duration) *Node {
	d.now = d.kept.clone()
	n := New(id, lease, now, d)
	if d.now.record == nil {
		return n
	}
	var entries [][]byte
	for _, i := range slices.Sorted(maps.Keys(d.now.entries)) {
		entries = append(entries, d.now.entries[i])
	}
	if got := VoterOf(d.now.record); got != id {
		t.Fatalf("the record is of voter %v, not %v", got, id)
	}
	if err := n.Recover(d.now.record, entries, id); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestStoredHistories: voters with disks end at any moment and begin again, disks fill up, messages are lost and late;
// what a majority has stays, in order, and each voter has a part of it.
func TestStoredHistories(t *testing.T) {
	const histories = 60
	confirmed, restarts, full := 0, 0, 0
	for seed := range uint64(histories) {
		rng := rand.New(rand.NewPCG(seed, 151))
		const voters = 3
		disks, nodes := map[Voter]*disk{}, map[Voter]*Node{}
		var ids []Voter
		for i := range voters {
			id := Voter(i + 1)
			ids = append(ids, id)
			disks[id], nodes[id] = &disk{}, nil
			nodes[id] = disks[id].start(t, id, 0)
		}
		nodes[1].Begin("e", 0, ids, nil, 0)
		var now time.Duration
		var air []Message
		said, proposed := []string{}, map[Voter][]struct {
			number, term uint64
			value        string
		}{}
		all := 0
		check := func() {
			for id, n := range nodes {
				if n == nil {
					continue
				}
				term, leads := n.Leads()
				done := n.Committed()
				for _, p := range proposed[id] {
					if leads && p.term == term && p.number <= done && !slices.Contains(said, p.value) {
						said, confirmed = append(said, p.value), confirmed+1
					}
				}
				if leads && done > 0 && n.Majority(now) { // it may tell what it has applied: all that was said is there
					for _, v := range said {
						if !slices.Contains(disks[id].now.applied, v) {
							t.Fatalf("history %d: the leader %v does not know %q of %q", seed, id, v, disks[id].now.applied)
						}
					}
				}
			}
			longest := []string{}
			for _, d := range disks {
				if len(d.now.applied) > len(longest) {
					longest = d.now.applied
				}
			}
			for id, d := range disks {
				if !slices.Equal(d.now.applied, longest[:len(d.now.applied)]) {
					t.Fatalf("history %d: voter %v has %q, another one %q", seed, id, d.now.applied, longest)
				}
			}
		}
		for range 600 {
			id := ids[rng.IntN(voters)]
			n := nodes[id]
			switch p := rng.IntN(100); {
			case n == nil:
				if p < 30 {
					nodes[id] = disks[id].start(t, id, now)
					restarts++
				}
			case p < 3:
				nodes[id], proposed[id] = nil, nil
			case p < 6:
				disks[id].full = !disks[id].full
				full++
			case p < 40:
				if _, leads := n.Leads(); leads {
					all++
					value := fmt.Sprint(all)
					term, _ := n.Leads()
					if number := n.Propose(now, []byte(value)); number > 0 {
						proposed[id] = append(proposed[id], struct {
							number, term uint64
							value        string
						}{number, term, value})
					}
				}
			case p < 70:
				now += Beat(lease)
				for _, n := range nodes {
					if n != nil {
						n.Tick(now)
					}
				}
			}
			for _, n := range nodes {
				if n != nil {
					air = append(air, n.Messages()...)
				}
			}
			rng.Shuffle(len(air), func(i, j int) { air[i], air[j] = air[j], air[i] })
			for range rng.IntN(len(air) + 1) {
				m := air[0]
				air = air[1:]
				if to := nodes[m.To]; to != nil && rng.IntN(20) > 0 && !to.Receive(m, now) {
					t.Fatalf("history %d: voter %v refuses a message of %v", seed, m.To, m.From)
				}
			}
			check()
		}
		for _, n := range nodes {
			if n != nil && n.Lost() {
				t.Fatalf("history %d: a memory is lost", seed)
			}
		}
	}
	if confirmed < histories || restarts < histories || full == 0 {
		t.Errorf("%d histories: %d confirmed, %d restarts, %d full disks", histories, confirmed, restarts, full)
	}
	t.Logf("%d histories: %d confirmed, %d restarts, disks were full %d times", histories, confirmed, restarts, full)
}

// TestRecordsThatCannotBe are errors.
func TestRecordsThatCannotBe(t *testing.T) {
	d := &disk{}
	n := d.start(t, 1, 0)
	n.Begin("e", 0, []Voter{1}, nil, 0)
	n.Propose(0, []byte("a"), []byte("b"))
	record := d.kept.record
	var entries [][]byte
	for _, i := range slices.Sorted(maps.Keys(d.kept.entries)) {
		entries = append(entries, d.kept.entries[i])
	}
	if len(entries) < 3 {
		t.Fatalf("%d entries", len(entries))
	}
	for name, bad := range map[string]struct {
		record  []byte
		entries [][]byte
	}{
		"an entry is missing":          {record, entries[1:]},
		"entries are in wrong order":   {record, [][]byte{entries[1], entries[0]}},
		"an entry is none":             {record, [][]byte{[]byte("junk")}},
		"the record is cut":            {record[:len(record)/2], entries},
		"the record has more":          {append(bytes.Clone(record), 1), entries},
		"what is committed is missing": {record, nil},
	} {
		if err := New(1, lease, 0, &disk{}).Recover(bad.record, bad.entries, 1); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	var e raftpb.Entry
	if unmarshal(entries[0], &e) != nil || e.GetIndex() != 2 {
		t.Errorf("the first entry is %d", e.GetIndex())
	}
}

// TestFresh: a cluster is fresh until somebody has proposed something in it, of which a process that came later knows
// no more than that it may be so.
func TestFresh(t *testing.T) {
	g, _ := newGroup(t, 3)
	if !g.nodes[1].Fresh() {
		t.Error("a cluster in which nothing was proposed is not fresh")
	}
	g.nodes[1].Propose(g.now, []byte("a"))
	g.carry()
	if g.nodes[1].Fresh() || g.nodes[2].Fresh() {
		t.Error("a cluster is fresh though something was proposed in it")
	}
}
