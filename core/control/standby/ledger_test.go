package standby

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
)

func factsOf(round uint64, reason string) rendezvous.Facts {
	f := rendezvous.Facts{Generation: "g", Origin: "o", Round: round, World: 2, HostRank: -1}
	f.Directives.Seq = 1
	f.Directives.Drained = append(f.Directives.Drained, rendezvous.DrainedFact{Node: "n", Reason: reason})
	return f
}

// TestLedger: what one server writes another one reads, and only what has changed is news.
func TestLedger(t *testing.T) {
	l := ledger{name: "group", facts: map[string][]byte{}}
	first, _ := l.set("a", factsOf(1, ""))
	if again, _ := l.set("a", factsOf(1, "")); again != first {
		t.Error("the same facts are a change")
	}
	l.set("b", factsOf(7, "x"))
	l.set("c", factsOf(8, "x"))
	l.forget("c")
	l.forget("d")
	got, err := decodeLedger(l.encode())
	if err != nil || got.name != "group" || len(got.facts) != 2 || got.size != l.size || nameOf(l.encode()) != "group" {
		t.Errorf("%+v, %v", got, err)
	}
	if f, err := rendezvous.DecodeFacts(got.facts["b"]); err != nil || !f.Equal(factsOf(7, "x")) {
		t.Errorf("%+v, %v", f, err)
	}
	l.forget("a")
	l.forget("b")
	if l.size != 0 {
		t.Errorf("%d bytes are left of nothing", l.size)
	}
}

// TestLedgerIsBounded: above three quarters no run begins; what then does not fit is left out, and
// told, and the rest of it is kept.
func TestLedgerIsBounded(t *testing.T) {
	g := NewPeers([]string{"a:1", "b:1", "c:1"}, "b:1", time.Second)
	l := &g.ledger
	reason := strings.Repeat("x", rendezvous.MaxNameLen)
	for i := range 40_000 {
		if g.Full() != "" {
			break
		}
		if _, whole := l.set(fmt.Sprint(i), factsOf(1, "")); !whole {
			t.Fatalf("run %d is not kept whole", i)
		}
	}
	if full := g.Full(); !strings.Contains(full, "KiB") || l.size < fullLedger {
		t.Errorf("%d bytes: %q", l.size, full)
	}
	cut := 0
	for i := range len(l.facts) {
		if _, whole := l.set(fmt.Sprint(i), factsOf(2, reason)); !whole {
			cut++
		}
	}
	if cut == 0 || l.size > maxLedger || len(l.encode()) > maxLedger {
		t.Errorf("%d runs are cut, %d bytes", cut, l.size)
	}
	got, err := decodeLedger(l.encode())
	if err != nil || got.size != l.size {
		t.Errorf("%d bytes, %v", got.size, err)
	}
	for run, facts := range got.facts {
		if f, err := rendezvous.DecodeFacts(facts); err != nil || f.Round != 2 {
			t.Fatalf("run %s: round %d, %v", run, f.Round, err)
		}
	}
}

// FuzzLedger: no value makes a server fail, and what is read of it is within its bounds.
func FuzzLedger(f *testing.F) {
	l := ledger{name: "group", facts: map[string][]byte{}}
	l.set("a", factsOf(1, "x"))
	f.Add(l.encode())
	f.Add([]byte{})
	f.Add([]byte("\x92\xa1g\x91\x92\xa1r\xc4\x01\xff"))
	f.Fuzz(func(t *testing.T, value []byte) {
		got, err := decodeLedger(value)
		nameOf(value)
		size := 0
		for run, facts := range got.facts {
			size += len(run) + len(facts) + ledgerPerRun
			if _, wrong := rendezvous.DecodeFacts(facts); wrong != nil {
				t.Error(wrong)
			}
		}
		if size != got.size {
			t.Errorf("%d bytes, not %d", got.size, size)
		}
		if err == nil {
			if again, err := decodeLedger(got.encode()); err != nil || again.size != size {
				t.Errorf("%+v, %v", again, err)
			}
		}
	})
}
