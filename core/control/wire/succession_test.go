package wire

import (
	"encoding/hex"
	"errors"
	"fmt"
	"rallypoint/core/election/raft"
	"testing"
)

// TestBoundsOfSuccession: lengths that no peer sends are refused before they take memory.
func TestBoundsOfSuccession(t *testing.T) {
	many := Standbys{}
	servers := make([]string, maxServers+1)
	for i := range 10_000 {
		many.List = append(many.List, StandbyNode{Node: fmt.Sprint(i)})
	}
	for name, f := range map[string]Frame{
		"10 000 standbys":        many,
		"one standby too many":   Standbys{List: many.List[:maxStandbys+1]},
		"too many servers":       Redirect{Servers: servers},
		"a node without an end":  Standbys{List: []StandbyNode{{Node: string(make([]byte, MaxName+1))}}},
		"a group without an end": Liveness{Group: string(make([]byte, MaxName+1))},
	} {
		if got, err := parseFrame(AppendFrame(nil, f)[frameHead:]); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := parseFrame(AppendFrame(nil, Standbys{List: many.List[:maxStandbys]})[frameHead:]); err != nil {
		t.Error(err)
	}
}

// TestSuccessionOnTheWire holds the bytes of the frames of succession: they are
// append-only.
func TestSuccessionOnTheWire(t *testing.T) {
	for want, f := range map[string]Frame{
		"930fa3613a31a26e6f":                                     Standby{Addr: "a:1", Why: "no"},
		"93109194a16ea16ca3613a31c3c3":                           Standbys{List: []StandbyNode{{"n", "l", "a:1", true}}, Invited: true},
		"921195a16702a3613a31a16e91a173":                         Redirect{Group: "g", Term: 2, Host: "a:1", Node: "n", Servers: []string{"s"}},
		"9418a16702a3613a31":                                     nil, // a number that is free
		"9415a16702a3613a31":                                     Transfer{Group: "g", Term: 2, Addr: "a:1"},
		"9e14a172a167a16ec3030295a000a0a090a176c391a16da1650304": Liveness{RunID: "r", Group: "g", Node: "n", Ask: true, State: 3, Term: 2, Voter: "v", Votes: true, Linked: []string{"m"}, Cluster: "e", Last: [2]uint64{3, 4}},
		"9917a167a165a131a17ac40101000000":                       Vote{Group: "g", Message: raft.Message{Cluster: "e", From: 1, To: 35, Data: []byte{1}}},
		"971300c0c3c3a16e95a16701a0a090":                         Probed{Yields: true, Round: true, Node: "n", Target: Redirect{Group: "g", Term: 1}},
	} {
		if f == nil {
			body, _ := hex.DecodeString(want)
			if got, err := parseFrame(body); err != nil || got != (Unknown{Kind: 24}) {
				t.Errorf("kind 24: %+v, %v", got, err)
			}
			continue
		}
		if got := hex.EncodeToString(AppendFrame(nil, f)[frameHead:]); got != want {
			t.Errorf("%T: %s, want %s", f, got, want)
		}
	}
}
