package control

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/core/training"
)

// worst are, by the names that docs/limits.md has for them, the frames of a node that make a
// server keep most: the i-th of a node.
var worst = map[string]func(i int) wire.Frame{
	"set":           worstKey(store.OpSet, func(i int) []string { return []string{longKey(i)} }, 60_000),
	"append":        worstKey(store.OpAppend, func(i int) []string { return []string{"log"} }, 60_000),
	"add":           worstKey(store.OpAdd, func(i int) []string { return []string{longKey(i)} }),
	"compare_set":   worstKey(store.OpCompareSet, func(i int) []string { return []string{"k"} }, 1, 1),
	"multi_set":     worstKey(store.OpMultiSet, func(i int) []string { return []string{longKey(i), fmt.Sprint(i)} }, 1, 60_000),
	"queue_push":    worstKey(store.OpQueuePush, func(i int) []string { return []string{fmt.Sprint("q", i)} }, 10),
	"queue_pop":     worstKey(store.OpQueuePop, func(i int) []string { return []string{longKey(i)} }),
	"get":           worstKey(store.OpGet, func(i int) []string { return []string{"k"} }),
	"multi_get":     worstKey(store.OpMultiGet, func(i int) []string { return slices.Repeat([]string{"k"}, 1+i*100) }),
	"wait":          worstKey(store.OpWait, func(i int) []string { return []string{longKey(i), fmt.Sprint(i)} }),
	"barrier":       worstKey(store.OpBarrier, func(i int) []string { return []string{fmt.Sprint(i)} }),
	"check":         worstKey(store.OpCheck, func(i int) []string { return []string{longKey(i)} }),
	"delete":        worstKey(store.OpDelete, func(i int) []string { return []string{longKey(i)} }),
	"count":         worstKey(store.OpNumKeys, func(i int) []string { return nil }),
	"list":          worstKey(store.OpListKeys, func(i int) []string { return nil }),
	"queue_len":     worstKey(store.OpQueueLen, func(i int) []string { return []string{longKey(i)} }),
	"cancel_wait":   worstKey(store.OpCancelWait, func(i int) []string { return nil }),
	"join":          worstRequest(func(i int) rendezvous.Event { return rendezvous.Join{StoreAddr: longName(i)} }),
	"withdraw":      worstRequest(func(i int) rendezvous.Event { return rendezvous.Withdraw{Join: uint64(i)} }),
	"finish":        worstRequest(func(i int) rendezvous.Event { return rendezvous.Finish{} }),
	"linger":        worstRequest(func(i int) rendezvous.Event { return rendezvous.AwaitPeers{} }),
	"leave":         worstRequest(func(i int) rendezvous.Event { return rendezvous.Leave{Reason: longName(i)} }),
	"close":         worstRequest(func(i int) rendezvous.Event { return rendezvous.CloseRun{By: longName(i), Reason: longName(i)} }),
	"announce_stop": worstRequest(func(i int) rendezvous.Event { return rendezvous.AnnounceStop{Round: 1, Reason: longName(i)} }),
	"report_directive": worstRequest(func(i int) rendezvous.Event {
		return rendezvous.ReportDirective{ID: longName(i), Generation: longName(i), Round: 1, Step: int64(i)}
	}),
	"direct": worstRequest(func(i int) rendezvous.Event {
		return rendezvous.GiveDirective{Directive: rendezvous.Direct{
			ID: longName(i), Kind: rendezvous.DirectiveDrain, Nodes: slices.Repeat([]string{"run 0"}, rendezvous.MaxDirectiveNodes), Within: time.Hour, Reason: longName(i),
		}}
	}),
	"unknown": func(i int) wire.Frame { return wire.Request{Number: uint64(i), Op: 99} },
	"beat": func(i int) wire.Frame {
		return wire.Beat{Echo: true, Training: &training.Report{Round: uint64(i), Workers: 8, Reporting: 8, Largest: int64(i)}}
	},
	"standby": func(i int) wire.Frame { return wire.Standby{} },
}

func longName(i int) string { return fmt.Sprint(strings.Repeat("n", rendezvous.MaxNameLen-10), i) }

func longKey(i int) string { return fmt.Sprint(strings.Repeat("k", 60_000), i) }

// worstKey is an operation that acknowledges nothing, with values of such sizes.
func worstKey(op store.Op, keys func(i int) []string, sizes ...int) func(i int) wire.Frame {
	return worstRequest(func(i int) rendezvous.Event {
		k := rendezvous.KeyRequest{Round: 1, Op: op, Keys: keys(i), Amount: 1000}
		for _, size := range sizes {
			k.Values = append(k.Values, make([]byte, size))
		}
		return k
	})
}

func worstRequest(ev func(i int) rendezvous.Event) func(i int) wire.Frame {
	return func(i int) wire.Frame {
		f, _ := wire.NewRequest(ev(i), uint64(i), 0)
		return f
	}
}

// TestWhatARunMakesAServerKeep sends the worst of each frame until well above the bound, and
// compares it with what the server counts, and, with the tag long, that with the memory taken.
func TestWhatARunMakesAServerKeep(t *testing.T) {
	most, many := 256<<10, 450
	if long {
		most, many = 1<<20, 1800
	}
	for _, name := range slices.Sorted(maps.Keys(worst)) {
		t.Run(name, func(t *testing.T) {
			s, addr := testServer(t, Config{Quota: Quota{Bytes: int64(most)}})
			tn := newTenant(t, addr, "run", 3)
			if err := tn.key(0, store.OpSet, []string{"k"}, make([]byte, 100_000)).Err; err != nil {
				t.Fatal(err)
			}
			before := uint64(0)
			if long {
				before = heap()
			}
			requests := many
			switch name { // those whose frames or answers are long
			case "set", "append", "add", "multi_set", "queue_pop", "wait", "check", "delete", "queue_len", "get", "multi_get", "compare_set", "direct":
				requests = 25
			case "finish", "unknown", "beat", "standby":
				requests = 100
			}
			for i := range tn.nodes {
				tn.flood(i, requests, worst[name])
			}
			kept := s.keptOf("run")
			if limit := int64(most + most/4); kept > limit {
				t.Errorf("%d bytes are kept, %d are allowed", kept, limit)
			}
			if !long {
				return
			}
			if taken := int64(heap()) - int64(before); taken > 2*kept+2<<20 {
				t.Errorf("%d bytes are taken, %d are counted", taken, kept)
			}
			runtime.KeepAlive(s)
		})
	}
}

// flood sends the frames of a node from its next number on, throws away what the server says,
// and returns when all were applied, or the server has ended the connection.
func (tn *tenant) flood(i, frames int, frame func(i int) wire.Frame) {
	n, first := tn.nodes[i], tn.number[i]+1
	last := first + uint64(frames)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			f, err := n.frames.NextFrame(wire.MaxFrame)
			if r, ok := f.(wire.Reply); err != nil || ok && r.Number == last {
				return
			}
		}
	}()
	for number := first; number < last; number++ {
		if _, err := n.conn.Write(wire.AppendFrame(nil, frame(int(number)))); err != nil {
			break
		}
	}
	check, _ := wire.NewRequest(rendezvous.KeyRequest{Round: 1, Op: store.OpAdd, Keys: []string{"last"}}, last, 0)
	_, _ = n.conn.Write(wire.AppendFrame(nil, check))
	<-done
}

// TestWhatIsKeptIsDescribed holds the table in docs/limits.md against the frames above.
func TestWhatIsKeptIsDescribed(t *testing.T) {
	page, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "## Memory of a job")
	table, _, _ = strings.Cut(table, "\n## ")
	described := map[string]bool{}
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for _, name := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(cells[1], -1) {
				described[name[1]] = true
			}
		}
	}
	delete(described, "hello")
	if got, want := slices.Sorted(maps.Keys(described)), slices.Sorted(maps.Keys(worst)); !slices.Equal(got, want) {
		t.Errorf("docs/limits.md describes %q, sent are %q", got, want)
	}
	for _, names := range [][]string{opNames[1:], keyOpNames[1:]} {
		for _, name := range names {
			if name != "" && name != "key" && !described[name] {
				t.Errorf("docs/limits.md does not say what %s makes a server keep", name)
			}
		}
	}
}

// TestWhatHellosMakeAServerKeep: nodes with names as long as they may be, that come and go.
func TestWhatHellosMakeAServerKeep(t *testing.T) {
	const most = 1 << 20
	s, addr := testServer(t, Config{Quota: Quota{Bytes: most}})
	p := controltest.Params("", 1000)
	p.ReconnectGrace = time.Hour
	for i := range 600 {
		n := dialBriefly(t, addr)
		h := testHello(longName(i), longName(i), p)
		h.Label = longName(i)
		f := n.greet(h)
		n.conn.Close()
		if f, ok := f.(wire.Refuse); ok {
			controltest.WantCode(t, f.Err, rendezvous.CodeTooLarge, "--max-bytes")
			if kept := s.keptOf("run"); kept < most/2 || kept > most {
				t.Errorf("node %d is refused at %d bytes", i, kept)
			}
			return
		}
	}
	t.Errorf("600 nodes have come, and %d bytes are counted", s.keptOf("run"))
}
