package failure

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"rallypoint/core/store"
)

// TestPublishedIsBounded, however many nodes fail.
func TestPublishedIsBounded(t *testing.T) {
	keys := store.NewMemory(store.NewEngine(store.Limits{}))
	long := strings.Repeat("x", 1<<20)
	f := Failure{Message: long, Stderr: make([]byte, 1<<20), Hang: long, Stack: long, Still: 31 * time.Second}
	for group := range 100 {
		if err := f.Publish(t.Context(), keys, 1, group, false); err != nil {
			t.Fatal(err)
		}
	}
	text, err := keys.Get(t.Context(), failuresKey)
	if err != nil || len(text) > 8*maxRootCause {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if published := ReadPublished(t.Context(), keys, 1); len(published) != maxPeers || published[0].group != 0 || published[0].Still != f.Still {
		t.Errorf("%d failures", len(published))
	}
}

// TestCulprit: the root cause is on the node that failed first, also in the report of one that
// failed later.
func TestCulprit(t *testing.T) {
	at := time.Unix(100, 0)
	own := []Failure{{Rank: 2, order: at}, {Rank: 3, order: at.Add(time.Second), Terminated: true}}
	published := func(groups ...int) (list []Failure) {
		for _, g := range groups {
			list = append(list, Failure{Rank: 10 + g, group: g})
		}
		return list
	}
	for _, c := range []struct {
		published []Failure
		want      string
		root      int
	}{
		{nil, "[2 3]", 2},
		{published(1), "[2 3]", 2},
		{published(0, 1), "[10 2 3]", 10},
		{published(1, 0), "[2 3 10]", 2},
		{published(5, 0, 1, 4), "[15 10 2 3 14]", 15},
		{published(5, 0), "[15 10 2 3]", 15}, // the own was not taken any more
	} {
		all := WithPeers(own, c.published, 1)
		var ranks []int
		for _, f := range all {
			ranks = append(ranks, f.Rank)
		}
		if got := fmt.Sprint(ranks); got != c.want || all[RootCause(all)].Rank != c.root {
			t.Errorf("%v, root %d; expected %s, %d", got, all[RootCause(all)].Rank, c.want, c.root)
		}
	}
}

// FuzzPeers takes any bytes for what other nodes wrote.
func FuzzPeers(f *testing.F) {
	f.Add([]byte(`{"number":1,"round":1,"rank":3,"exit_code":-9,"stderr":"\u001b[31mx"}` + "\n{}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if failures := parsePeers(text, 1); len(failures) > 0 {
			_ = Report("x", WithPeers(failures[:1], failures, failures[0].group), "")
		}
	})
}

// TestPeersCannotWriteToTheTerminal: what other nodes tell of their failures is shown
// without anything that a terminal would obey.
func TestPeersCannotWriteToTheTerminal(t *testing.T) {
	const evil = "x\x1b]0;owned\x07\x1b[31my\r\n  z"
	text, err := json.Marshal(peerFailure{Round: 1, Failure: Failure{ExitCode: 1, Host: evil, ErrorFile: evil, Message: evil}, Stderr: evil})
	if err != nil {
		t.Fatal(err)
	}
	failures := parsePeers(text, 1)
	if len(failures) != 1 {
		t.Fatalf("%d failures", len(failures))
	}
	shown := Report("train.py", failures, "") + failures[0].Summary()
	if strings.ContainsAny(shown, "\x1b\x07\r") {
		t.Errorf("the report is %q", shown)
	}
	if !strings.Contains(shown, "traceback : xy\n  z") { // lines stay lines
		t.Errorf("the traceback is mutilated: %q", shown)
	}
	if strings.Contains(failures[0].Summary(), "\n") {
		t.Errorf("the summary has several lines: %q", failures[0].Summary())
	}
}

// TestPeersAreBounded: what a node, or a stranger, wrote as failures is short in a report,
// and does nothing to a terminal.
func TestPeersAreBounded(t *testing.T) {
	long := strings.Repeat("\x1b[2Jx", maxPeersText/20) // four of them, each as JSON twice as long
	text, err := json.Marshal(peerFailure{Round: 1, Failure: Failure{Host: long, ErrorFile: long, Message: long}, Stderr: long})
	if err != nil {
		t.Fatal(err)
	}
	if got := parsePeers(append(text, '\n'), 1); len(got) != 0 {
		t.Errorf("%d failures of %d bytes", len(got), len(text))
	}
	const some = 40 << 10
	long = long[:some]
	if text, err = json.Marshal(peerFailure{Round: 1, Failure: Failure{Host: long, ErrorFile: long, Message: long}, Stderr: long}); err != nil {
		t.Fatal(err)
	}
	got := parsePeers(bytes.Repeat(append(text, '\n'), 2*maxPeersText/len(text)), 1)
	if len(got) == 0 || len(got) > maxPeers {
		t.Fatalf("%d failures", len(got))
	}
	f := got[0]
	if shown := Report("x", got[:1], ""); strings.Contains(shown, "\x1b") || len(shown) > 8*maxRootCause {
		t.Errorf("a report of %d bytes", len(shown))
	}
	if len(f.Host) > 4*maxCollateral || len(f.Stderr) > 2*maxRootCause {
		t.Errorf("%d bytes of host, %d of stderr", len(f.Host), len(f.Stderr))
	}
}
