package rendezvous

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
	"time"

	"rallypoint/core/store"
	"rallypoint/internal/pack"
)

// sampleEvents holds every event with each field set.
func sampleEvents() []Event {
	at := time.Unix(1700000000, 5).UTC()
	r := Request{Session: "s", Number: 3, Acked: 2}
	return []Event{
		Join{Request: r, NodeRank: -1, RankHint: 3, StoreAddr: "fe80::1%eth0", StorePort: 65535},
		Withdraw{Request: r, Join: 1 << 40},
		Leave{Request: r, Ending: EndFailed, Reason: "because", At: at},
		CloseRun{Request: r, By: "me", Reason: "because", Stop: true, At: at},
		CloseRun{By: "admin", Reason: "because"},
		Finish{r}, AwaitPeers{r},
		KeyRequest{Request: r, Round: 3, Op: store.OpCancelWait, Keys: []string{"k", "\x00\xff"}, Values: [][]byte{nil, {}, {2}}, Amount: -9},
		Hello{
			Session: "s", Node: "n", Incarnation: 1 << 63, Named: true, Label: "host pid 1", InHost: true, SeenAddr: "10.0.0.1", ServerAddr: "10.0.0.2",
			Policy: Policy{Min: 1, Max: 2, NodeUnit: 3, Target: 4, LastCallTimeout: 5, QuietPeriod: 6,
				RegroupTimeout: 7, AdmitDelay: 8, LeaseTimeout: 9, ReconnectGrace: 10, ClosedFor: 11}, BeginAgain: true, HostName: "h", Topology: "rack7",
			LastRound: LastRound{Generation: "gen", Round: 3, Rank: 1, World: 2, HostRank: -1, Finished: true,
				Reports: []DirectiveReport{{"d1", 41, false}, {"d1", -1, true}},
				Facts: Facts{Generation: "gen", Origin: "gen", Round: 3, World: 2, HostRank: -1, Directives: DirectiveFacts{
					Seq: 9, Target: 2, Standing: []StandingFact{{Direct{ID: "d1", Kind: DirectiveDrain, Nodes: []string{"a"}, Within: 5, By: "admin", Reason: "because", At: at}, 3, 41}},
					Ended: []string{"d0"}, Drained: []DrainedFact{{"b", "admin", "because", 7, CauseFailures, true}}}}},
		},
		Disconnect{Session: "s"}, Disconnect{Session: "s", Dead: true}, LeaseExpired{"s"}, Evict{Node: "n", By: "admin", Reason: "why"},
		TimerFired{Timer{Kind: TimerGrace, Session: "s", Seq: 7}}, Recovered{},
		AnnounceStop{Request: r, Generation: "gen", Round: 3, Leaving: true, Reason: "because", Away: time.Hour},
		Direct{ID: "d1", Kind: DirectiveDrain, Nodes: []string{"a", "b"}, Within: 5, For: 6, By: "admin", Reason: "because", At: at},
		Direct{ID: "d2", Kind: DirectiveScale, Within: 5, By: "admin", Reason: "because", At: at, Target: 3},
		ReportDirective{Request: r, ID: "d1", Generation: "gen", Round: 3, Step: 1 << 40, Saved: true},
		GiveDirective{Request: r, Directive: Direct{ID: "d3", Kind: DirectiveDrain, Nodes: []string{"a"}, Within: 5, Reason: "because", At: at}},
		CancelDirective{ID: "d1", By: "admin", Reason: "because"}, Undrain{Node: "a", By: "admin", Reason: "because"}, Cordon{Node: "a", For: time.Hour, By: "admin", Reason: "because"},
		Forget{By: "admin", Reason: "because"}, Ended{Closing{ClosedSuccess, "a", "because", at, "a0 b1"}, 12, "boot", 13},
	}
}

func TestEventsRoundTrip(t *testing.T) {
	seen := map[Op]bool{}
	for _, want := range sampleEvents() {
		b, err := EncodeEvent(want)
		if err != nil {
			t.Fatalf("%T: %v", want, err)
		}
		got, err := DecodeEvent(b)
		if err != nil {
			t.Fatalf("%T: %v", want, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		seen[OpOf(want)] = true
		for cut := range b {
			if ev, err := DecodeEvent(b[:cut]); err == nil {
				t.Errorf("%d of %d bytes are %+v", cut, len(b), ev)
			}
		}
		if ev, err := DecodeEvent(append(b, 0)); err == nil {
			t.Errorf("a byte too many is %+v", ev)
		}
	}
	for op := OpJoin; op <= OpGiveDirective; op++ {
		if !seen[op] && (op <= opRecovered || op >= OpAnnounceStop) {
			t.Errorf("no sample of operation %d", op)
		}
	}
}

// TestLoggedBytes pins what older logs hold.
func TestLoggedBytes(t *testing.T) {
	for ev, want := range map[Event]string{
		Join{Request: Request{"s", 3, 2}, NodeRank: -1, RankHint: 3, StoreAddr: "a", StorePort: 80}: "960901" + "94ff03a16150" + "a1730302",
		Disconnect{Session: "s"}:              "930909" + "92a173c2",
		TimerFired{Timer{TimerGrace, "s", 7}}: "93090c" + "919305a17307",
		Recovered{}:                           "93090d" + "90",
		AnnounceStop{Request{"s", 3, 2}, "g", 4, true, "why", 0}: "960917" + "95a16704c3a377687900" + "a1730302",
	} {
		b, err := EncodeEvent(ev)
		if got := hex.EncodeToString(b); err != nil || got != want {
			t.Errorf("%+v is %s, %v; want %s", ev, got, err, want)
		}
		for version := range byte(StateVersion) {
			b[1] = version + 1
			if got, err := DecodeEvent(b); err != nil || !reflect.DeepEqual(got, ev) {
				t.Errorf("%x is %+v, %v; want %+v", b, got, err, ev)
			}
		}
	}
}

// TestEventsOfOtherVersions reads fields that are not there yet or any more.
func TestEventsOfOtherVersions(t *testing.T) {
	for text, want := range map[string]Event{
		"960517" + "94a16704c3a3776879" + "a1730302": AnnounceStop{Request{"s", 3, 2}, "g", 4, true, "why", 0},
		"960101" + "90" + "a1730302":                 Join{Request: Request{"s", 3, 2}, NodeRank: -1, RankHint: -1},
		"960101" + "95ff03a1615092c0c0" + "a1730302": Join{Request: Request{"s", 3, 2}, NodeRank: -1, RankHint: 3, StoreAddr: "a", StorePort: 80},
		"930809" + "91a173":                          Disconnect{Session: "s"},
		"940109" + "91a173" + "c0":                   Disconnect{Session: "s"},
	} {
		b, _ := hex.DecodeString(text)
		if got, err := DecodeEvent(b); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %+v, %v; want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"930a09" + "91a173": "newer release",
		"930009" + "91a173": "no version",
		"930163" + "90":     "operation 99",
		"a0":                "not an event",
		"":                  "not an event",
	} {
		b, _ := hex.DecodeString(text)
		ev, err := DecodeEvent(b)
		if CodeOf(err) != CodeState || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is %+v, %v; want an error that says %q", text, ev, err, want)
		}
	}
}

func reporting(l LastRound) Event { return Hello{Session: "s", LastRound: l} }

func TestOversizeEventsAreNotLogged(t *testing.T) {
	long := strings.Repeat("x", MaxNameLen+1)
	for _, ev := range []Event{
		Hello{Session: "s", Node: long}, Hello{Session: "s", Topology: long}, Disconnect{Session: SessionID(long)}, Join{StoreAddr: long},
		KeyRequest{Op: store.OpSet, Keys: []string{strings.Repeat("k", MaxKeyLen+1)}, Values: [][]byte{nil}},
		KeyRequest{Op: store.OpSet, Keys: []string{"k"}, Values: [][]byte{make([]byte, maxValueLen+1)}},
		KeyRequest{Op: store.OpWait, Keys: make([]string, MaxKeys+1)},
		KeyRequest{Op: store.OpSet, Values: make([][]byte, MaxKeys+1)},
		Stamp(Finish{}, Request{Session: SessionID(long)}), TimerFired{Timer{Session: SessionID(long)}},
		Direct{ID: "d", Nodes: make([]string, MaxDirectiveNodes+1)}, Direct{ID: "d", Nodes: []string{long}},
		reporting(LastRound{Store: long}), reporting(LastRound{Reports: make([]DirectiveReport, MaxDirectiveReports+1)}),
		reporting(LastRound{Facts: Facts{Generation: "g", FinishedHosts: make([]int, maxFinishedHosts+1)}}),
		reporting(LastRound{Facts: Facts{Generation: "g", Directives: DirectiveFacts{Seq: 1, Ended: []string{long}}}}),
		reporting(LastRound{Facts: Facts{Generation: "g", Directives: DirectiveFacts{Seq: 1, Standing: make([]StandingFact, manyStanding+1)}}}),
	} {
		if b, err := EncodeEvent(ev); CodeOf(err) != CodeTooLarge {
			t.Errorf("%T of %d bytes, %v", ev, len(b), err)
		}
	}
	for _, ev := range []Event{Evict{Node: "n", Reason: long}, Leave{Reason: long}, CloseRun{By: long}, Hello{Label: long}} {
		b, err := EncodeEvent(ev)
		if err != nil {
			t.Errorf("%T: %v", ev, err)
		} else if _, err := DecodeEvent(b); err != nil {
			t.Errorf("%T: %v", ev, err)
		}
	}
}

func FuzzDecodeEvent(f *testing.F) {
	for _, ev := range sampleEvents() {
		b, _ := EncodeEvent(ev)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		ev, err := DecodeEvent(b)
		if err != nil {
			if CodeOf(err) != CodeState {
				t.Fatalf("code %d: %v", CodeOf(err), err)
			}
			return
		}
		again, err := EncodeEvent(ev)
		if err != nil {
			t.Fatalf("%+v was read and cannot be written: %v", ev, err)
		}
		twin, err := DecodeEvent(again)
		if err != nil {
			t.Fatalf("%+v: %v", ev, err)
		}
		if second, _ := EncodeEvent(twin); !bytes.Equal(again, second) {
			t.Fatalf("%+v became %+v", ev, twin)
		}
		New(Config{RunID: "job"}).Apply(ev)
	})
}

// TestArgumentsOfNoEvent: what stands for a request of another version is an empty list.
func TestArgumentsOfNoEvent(t *testing.T) {
	if b := pack.Append(nil, func(p *pack.Packer) { PackArguments(p, nil) }); !bytes.Equal(b, pack.Append(nil, func(p *pack.Packer) { p.List(0) })) {
		t.Errorf("% x", b)
	}
}
