package tcpstore

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rallypoint/core/store"
)

// recorded is one file of testdata/golden.
type recorded struct {
	name        string
	Op          string      `json:"op"`
	SetupClient string      `json:"setup_client_hex"`
	SetupServer string      `json:"setup_server_hex"`
	Steps       [][2]string `json:"steps"`
}

// recordedSession is one file of testdata/golden-older.
type recordedSession struct {
	name  string
	Torch string `json:"torch"`
	Calls []struct {
		Call   string      `json:"call"`
		Events [][3]string `json:"events"`
	} `json:"calls"`
}

func readGolden(t testing.TB) []recorded {
	t.Helper()
	return readJSON(t, "testdata/golden/*.json", func(r *recorded, name string) { r.name = name })
}

func readOlder(t testing.TB) []recordedSession {
	t.Helper()
	return readJSON(t, "testdata/golden-older/*.json", func(r *recordedSession, name string) { r.name = name })
}

func readJSON[T any](t testing.TB, pattern string, named func(*T, string)) []T {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("no files %s: %v", pattern, err)
	}
	var all []T
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var r T
		if err := json.Unmarshal(text, &r); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		named(&r, strings.TrimSuffix(filepath.Base(name), ".json"))
		all = append(all, r)
	}
	return all
}

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// hello is VALIDATE and a PING, as they come from torch 2.5 and newer.
var hello = appendPing(appendHello(nil), 0x49b7)

// includesHello reports whether the recording has the handshake itself.
func (r recorded) includesHello() bool { return strings.HasPrefix(r.Op, "VALIDATE") }

// TestGolden replays the recordings of torch 2.15 one step after another, byte by
// byte, and in one piece.
func TestGolden(t *testing.T) {
	for _, r := range readGolden(t) {
		for _, split := range []string{"steps", "bytes", "whole"} {
			t.Run(r.name+"/"+split, func(t *testing.T) { r.replay(t, split) })
		}
	}
}

func (r recorded) replay(t *testing.T, split string) {
	e := store.NewEngine(store.Limits{})
	if strings.Contains(r.name, "with_init") {
		e.Set("init/", []byte("1")) // its client was constructed with a world size
	}
	p := newPeer(e, sessionConfig{})
	if !r.includesHello() {
		p.expect(t, "hello", hello, hello[6:], split)
	}
	p.expect(t, "setup", unhex(t, r.SetupClient), unhex(t, r.SetupServer), split)
	if split == "whole" {
		var sent, want []byte
		for _, step := range r.Steps {
			if step[0] == "C" {
				sent = append(sent, unhex(t, step[1])...)
			} else {
				want = append(want, unhex(t, step[1])...)
			}
		}
		p.expect(t, "all", sent, want, "steps")
		return
	}
	for i := 0; i < len(r.Steps); i++ {
		sent, want := unhex(t, r.Steps[i][1]), []byte(nil)
		if r.Steps[i][0] != "C" {
			t.Fatalf("step %d is not the client's", i)
		}
		if i+1 < len(r.Steps) && r.Steps[i+1][0] == "S" {
			i++
			want = unhex(t, r.Steps[i][1])
		}
		p.expect(t, r.Steps[i][1], sent, want, split)
	}
}

// TestGoldenOlder replays whole sessions of torch 2.2 to 2.14 against one engine.
func TestGoldenOlder(t *testing.T) {
	for _, r := range readOlder(t) {
		if isOld(r.Torch) {
			continue
		}
		for _, split := range []string{"steps", "bytes"} {
			t.Run(r.name+"/"+split, func(t *testing.T) { r.replay(t, split) })
		}
	}
}

func (r recordedSession) replay(t *testing.T, split string) {
	e := store.NewEngine(store.Limits{})
	peers := map[string]*testPeer{}
	for _, call := range r.Calls {
		for i := 0; i < len(call.Events); i++ {
			name, direction, data := call.Events[i][0], call.Events[i][1], call.Events[i][2]
			p := peers[name]
			if p == nil {
				p = newPeer(e, sessionConfig{})
				peers[name] = p
			}
			switch {
			case data == "EOF":
				p.session.close()
			case direction == "C":
				var want []byte
				if i+1 < len(call.Events) && call.Events[i+1][0] == name && call.Events[i+1][1] == "S" && call.Events[i+1][2] != "EOF" {
					i++
					want = unhex(t, call.Events[i][2])
				}
				p.expect(t, call.Call, unhex(t, data), want, split)
			default:
				t.Fatalf("%s: the server speaks first", call.Call)
			}
		}
	}
	if n := e.NumWaiters(); n != 0 {
		t.Errorf("%d waiters are left", n)
	}
}

// TestGoldenRefused feeds the recordings of torch 2.1 and older, which have to be
// refused in their first message.
func TestGoldenRefused(t *testing.T) {
	found := 0
	for _, r := range readOlder(t) {
		if !isOld(r.Torch) {
			continue
		}
		found++
		t.Run(r.name, func(t *testing.T) {
			refusals := map[string]bool{}
			peers := map[string]*testPeer{}
			for _, call := range r.Calls {
				for _, event := range call.Events {
					name, direction, data := event[0], event[1], event[2]
					if direction != "C" || data == "EOF" {
						continue
					}
					if peers[name] == nil {
						peers[name] = newPeer(store.NewEngine(store.Limits{}), sessionConfig{})
						out, err := peers[name].send(unhex(t, data))
						if err == nil || err.reason != reasonDialect || !strings.Contains(err.Error(), "torch 2.2 and newer") {
							t.Errorf("%s: not refused: %v", call.Call, err)
						}
						if len(out) > 0 {
							t.Errorf("%s: answered %x", call.Call, out)
						}
						refusals[name] = true
					}
				}
			}
			if len(refusals) == 0 {
				t.Error("the recording has no client bytes")
			}
		})
	}
	if found != 3 {
		t.Errorf("%d old recordings, want 3", found)
	}
}

func isOld(torch string) bool {
	return strings.HasPrefix(torch, "1.") || strings.HasPrefix(torch, "2.0.") || strings.HasPrefix(torch, "2.1.")
}

// testPeer drives a session without a socket.
type testPeer struct {
	session session
}

func newPeer(e *store.Engine, config sessionConfig) *testPeer {
	if config.maxUnsent == 0 {
		config.maxUnsent = DefaultMaxUnsent
	}
	if config.maxWaitBytes == 0 {
		config.maxWaitBytes = DefaultMaxWaitBytes
	}
	config.counters = &counters{}
	p := &testPeer{}
	p.session = session{parser: &parser{}, engine: e, config: &config, woken: func() {}}
	return p
}

// takeOut returns the replies as a socket gets them.
func (p *testPeer) takeOut(spare []byte) []byte {
	out, parts := p.session.takeOut(spare)
	for _, part := range slices.Backward(parts) {
		out = slices.Insert(out, part.at, part.value...)
		part.buffer.Release()
	}
	return out
}

// send feeds b and returns the replies.
func (p *testPeer) send(b []byte) ([]byte, *refusal) {
	for len(b) > 0 {
		n := copy(p.session.parser.space(), b)
		p.session.parser.received(n)
		b = b[n:]
		if _, err := p.session.process(math.MaxInt); err != nil {
			return p.takeOut(nil), err
		}
	}
	return p.takeOut(nil), nil
}

// expect feeds sent, whole or byte by byte, and compares the replies. Those of
// LIST_KEYS are compared without regard to order.
func (p *testPeer) expect(t *testing.T, what string, sent, want []byte, split string) {
	t.Helper()
	pieces := [][]byte{sent}
	if split == "bytes" {
		pieces = slices.Collect(slices.Chunk(sent, 1))
	}
	var got []byte
	for i, piece := range pieces {
		out, err := p.send(piece)
		if err != nil {
			t.Fatalf("%s: refused: %v", what, err)
		}
		if len(out) > 0 && i < len(pieces)-1 && len(got) > len(want) {
			t.Fatalf("%s: answered before the message was complete", what)
		}
		got = append(got, out...)
	}
	if bytes.Equal(sent, []byte{byte(opListKeys)}) {
		got, want = sortList(got), sortList(want)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: sent %x\n got %x\nwant %x", what, sent, got, want)
	}
}

// sortList sorts the keys of a LIST_KEYS reply.
func sortList(reply []byte) []byte {
	p := parser{validated: true, buf: append([]byte{byte(opCheck)}, reply...)}
	req, err := p.next()
	if err != nil || req == nil {
		return reply
	}
	keys := slices.Clone(req.keys)
	slices.SortFunc(keys, bytes.Compare)
	out := appendInt(nil, len(keys))
	for _, key := range keys {
		out = appendText(out, key)
	}
	return out
}
