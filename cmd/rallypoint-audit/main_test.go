package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/trace"
	"rallypoint/internal/testkit"
)

func execute(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = audit(args, &out, &err)
	return code, out.String(), err.String()
}

// TestAudit checks small histories; TestServeIsKilled and TestChaos check long ones.
func TestAudit(t *testing.T) {
	m := rendezvous.New(rendezvous.Config{RunID: "job", Generation: "g", Uptime: -1})
	begin := trace.Record{Run: "job", State: m.Snapshot()}
	p := params.Default().Policy
	p.Min, p.Max = 1, 1
	hello := rendezvous.Hello{Session: "s", Node: "a", Policy: p, LastRound: rendezvous.LastRound{HostRank: -1}}
	join := rendezvous.Join{Request: rendezvous.Request{Session: "s", Number: 1}, NodeRank: -1, RankHint: -1, StorePort: 1}
	greeted := trace.Record{Run: "job", Number: 1, Event: hello, Effects: m.Apply(hello)}
	placed := trace.Record{Run: "job", Number: 2, Event: join, Effects: m.Apply(join)}
	ignored := placed
	ignored.Effects = nil
	lines := func(records ...trace.Record) string {
		var all bytes.Buffer
		for _, rec := range records {
			line, err := rec.Encode()
			if err != nil {
				t.Fatal(err)
			}
			all.Write(line)
		}
		return all.String()
	}
	for _, c := range []struct {
		name, history string
		code          int
		says          string
	}{
		{"kept", lines(begin, greeted, placed), 0, "run job: 2 events, 1 rounds: all guarantees hold\n"},
		{"broken", lines(begin, greeted, ignored), 1, "guarantee 5, event 2: a first round of 1 nodes is due and was not completed"},
		{"gap", lines(begin, placed), 1, "not checked to its end: events 1 to 1 are missing"},
		{"empty", "", 1, "holds no history"},
		{"foreign", "one\ntwo\n", 1, "is not a history that this release can read: line 1"},
	} {
		path := filepath.Join(t.TempDir(), c.name)
		if err := os.WriteFile(path, []byte(c.history), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, stdout, stderr := execute(path); code != c.code || !strings.Contains(stdout+stderr, c.says) {
			t.Errorf("%s: %d\n%s%s", c.name, code, stdout, stderr)
		}
	}
	if code, _, stderr := execute(t.TempDir() + "/none"); code != 1 || !strings.Contains(stderr, "no such file") {
		t.Errorf("%d, %s", code, stderr)
	}
	if code, stdout, stderr := execute("--help"); code != 0 || stdout != usage || stderr != "" {
		t.Errorf("--help: %d, %q, %q", code, stdout, stderr)
	}
	for _, wrong := range [][]string{nil, {"--no-such-option"}} {
		if code, stdout, stderr := execute(wrong...); code != 2 || stdout != "" || !strings.Contains(stderr, "FILE is missing") {
			t.Errorf("%q: %d, %q, %q", wrong, code, stdout, stderr)
		}
	}
}

// TestAuditOfAllHosts checks what two nodes have recorded that hosted one after the other.
func TestAuditOfAllHosts(t *testing.T) {
	dir, p := t.TempDir(), params.Default().Policy
	p.Min, p.Max = 1, 2
	group := ""
	write := func(node, file string, m *rendezvous.Machine, events ...rendezvous.Event) (path string) {
		s := m.Succession()
		s.Term = max(s.Term, 1)
		records := []trace.Record{{Run: "job", State: m.Snapshot(), Host: node, Group: group, Succession: &s}}
		for i, ev := range events {
			records = append(records, trace.Record{Run: "job", Number: uint64(i + 1), Event: ev, Effects: m.Apply(ev)})
		}
		path = filepath.Join(dir, file)
		var all []byte
		for _, rec := range records {
			line, err := rec.Encode()
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, line...)
		}
		if err := os.WriteFile(path, append(all, `{"torn`...), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	join := func(session rendezvous.SessionID, number uint64) rendezvous.Join {
		return rendezvous.Join{Request: rendezvous.Request{Session: session, Number: number}, NodeRank: -1, RankHint: -1, StorePort: 1}
	}
	a := rendezvous.New(rendezvous.Config{RunID: "job", Generation: "g", Uptime: -1})
	first := write("a", "a", a,
		rendezvous.Hello{Session: "s1", Node: "a", Policy: p, LastRound: rendezvous.LastRound{HostRank: -1}, InHost: true},
		rendezvous.Hello{Session: "s2", Node: "b", Policy: p, LastRound: rendezvous.LastRound{HostRank: -1}},
		join("s1", 1), join("s2", 1))
	o := rendezvous.Outcome{Generation: "g", Round: 1, Rank: 1, World: 2}
	last := o.LastRound()
	last.Facts = o.Facts()
	successor := func(generation string, term uint64) *rendezvous.Machine {
		return rendezvous.New(rendezvous.Config{RunID: "job", Generation: generation, Succession: rendezvous.Succession{Term: term, From: "a", Facts: o.Facts()}})
	}
	next := []rendezvous.Event{rendezvous.Hello{Session: "s2", Node: "b", Policy: p, LastRound: last, InHost: true}, join("s2", 2)}
	second := write("b", "b", successor("g+", 2), next...)
	inGroup := func(name, node, file, generation string) string {
		defer func() { group = "" }()
		group = name
		return write(node, file, successor(generation, 2), next...)
	}
	for _, c := range []struct {
		name  string
		files []string
		code  int
		says  string
	}{
		{"all", []string{first, second}, 0, "run job: 6 events, 2 rounds: all guarantees hold\n"},
		{"in another order", []string{second, first}, 0, "run job: 6 events, 2 rounds: all guarantees hold\n"},
		{"one alone", []string{second}, 0, "run job: 2 events, 1 rounds: all guarantees hold\n"},
		{"two of one term", []string{first, second, write("c", "c", successor("h", 2), next...)}, 1,
			"guarantee 1, event 6: node c hosts in term 2, after term 2 of node b"},
		{"two of one term in a group", []string{inGroup("x", "b", "b-x", "g1"), inGroup("x", "c", "c-x", "g2")}, 1,
			"guarantee 1, event 2: node c hosts in term 2, after term 2 of node b"},
		{"two groups, whose founders left no history", []string{inGroup("x", "b", "b-x1", "g1"), inGroup("y", "c", "c-y", "g2")}, 0, "4 events"},
		{"one generation twice", []string{first, write("b", "again", successor("g", 2), next...)}, 1, "begins with the generation g of an earlier one"},
	} {
		if code, stdout, stderr := execute(c.files...); code != c.code || !strings.Contains(stdout+stderr, c.says) {
			t.Errorf("%s: %d\n%s%s", c.name, code, stdout, stderr)
		}
	}
}

// TestAuditOrdersHistories: the order in which files are named does not matter, where terms do not
// tell it either.
func TestAuditOrdersHistories(t *testing.T) {
	dir, p := t.TempDir(), params.Default().Policy
	p.Min, p.Max = 1, 1
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	files := 0
	write := func(begin trace.Record, m *rendezvous.Machine, events ...rendezvous.Event) string {
		files++
		begin.Run, begin.State, begin.At = "job", m.Snapshot(), began.Add(time.Duration(files)*time.Minute)
		records := []trace.Record{begin}
		for i, ev := range events {
			records = append(records, trace.Record{At: begin.At, Run: "job", Number: begin.Number + uint64(i+1), Event: ev, Effects: m.Apply(ev)})
		}
		var all []byte
		for _, rec := range records {
			all = append(all, testkit.Must(rec.Encode())(t)...)
		}
		path := filepath.Join(dir, fmt.Sprint(files))
		testkit.WriteFile(t, path, all)
		return path
	}
	hello := func(session rendezvous.SessionID, last rendezvous.LastRound) rendezvous.Event {
		return rendezvous.Hello{Session: session, Node: "a", Incarnation: uint64(files), Policy: p, LastRound: last, InHost: true}
	}
	join := func(session rendezvous.SessionID, number uint64) rendezvous.Event {
		return rendezvous.Join{Request: rendezvous.Request{Session: session, Number: number}, NodeRank: -1, RankHint: -1, StorePort: 1}
	}
	first := rendezvous.LastRound{HostRank: -1}
	last := rendezvous.Outcome{Generation: "g", Round: 1, World: 1, HostRank: 0}.LastRound()
	for name, record := range map[string]func() []string{
		"a server that continued": func() []string {
			m := rendezvous.New(rendezvous.Config{RunID: "job", Generation: "g", Uptime: -1})
			one := write(trace.Record{}, m, hello("s", first), join("s", 1))
			return []string{one, write(trace.Record{Number: 2}, m, rendezvous.Recovered{Generation: "g2"}, hello("s", last), join("s", 2))}
		},
		"a server that began again": func() []string {
			one := write(trace.Record{}, rendezvous.New(rendezvous.Config{RunID: "job", Generation: "g", Uptime: -1}), hello("s", first), join("s", 1))
			return []string{one, write(trace.Record{}, rendezvous.New(rendezvous.Config{RunID: "job", Generation: "h", Uptime: 0}), hello("s", last), join("s", 2))}
		},
		"two founders": func() []string {
			founder := func() trace.Record {
				return trace.Record{Host: "a", Succession: &rendezvous.Succession{Term: 1}}
			}
			config := rendezvous.Config{RunID: "job", Generation: "g", Uptime: 0, Succession: rendezvous.Succession{Term: 1}}
			one := write(founder(), rendezvous.New(config), hello("s", first), join("s", 1))
			config.Generation = "h"
			return []string{one, write(founder(), rendezvous.New(config), hello("s2", last), join("s2", 1))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			written := record()
			_, want, _ := execute(written...)
			slices.Reverse(written)
			code, got, stderr := execute(written...)
			if code != 0 || got != want {
				t.Errorf("%d\n%s%s\nin their order:\n%s", code, got, stderr, want)
			}
		})
	}
}
