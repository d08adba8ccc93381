package tcpstore

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"rallypoint/core/store"
)

// addSeeds adds what stock clients of all recorded versions sent, each connection
// as one stream.
func addSeeds(f *testing.F) {
	for _, r := range readGolden(f) {
		var sent []byte
		if !r.includesHello() {
			sent = append(sent, hello...)
		}
		sent = append(sent, unhex(f, r.SetupClient)...)
		for _, step := range r.Steps {
			if step[0] == "C" {
				sent = append(sent, unhex(f, step[1])...)
			}
		}
		f.Add(sent, uint16(1))
	}
	for _, r := range readOlder(f) {
		sent := map[string][]byte{}
		for _, call := range r.Calls {
			for _, event := range call.Events {
				if event[1] == "C" && event[2] != "EOF" {
					sent[event[0]] = append(sent[event[0]], unhex(f, event[2])...)
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(sent)) {
			f.Add(sent[name], uint16(7))
		}
	}
	f.Add(allRequests, uint16(3))
	f.Add(append(appendHello(nil), msg(opMultiSet, uint64(1)<<63)...), uint16(2))
}

// pieceOf turns a fuzzed number into a length of pieces.
func pieceOf(split uint16) int { return 1 + int(split)%2000 }

// FuzzParser: any split of a stream gives the same requests and the same end, and
// memory follows the bytes received.
func FuzzParser(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, sent []byte, split uint16) {
		var whole, parts parser
		want, wantErr := feed(&whole, sent, len(sent))
		got, err := feed(&parts, sent, pieceOf(split))
		if !slices.Equal(got, want) || fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Errorf("pieces of %d: %d requests, %v\nin one piece: %d requests, %v", pieceOf(split), len(got), err, len(want), wantErr)
		}
		if got, err := feedMoved(sent, pieceOf(split)); !slices.Equal(got, want) || fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Errorf("moved after pieces of %d: %d requests, %v\nin one piece: %d requests, %v", pieceOf(split), len(got), err, len(want), wantErr)
		}
		for _, p := range []*parser{&whole, &parts} {
			if cap(p.buf) > 4*len(sent)+2*firstBuffer || cap(p.spans) > 2*len(sent)+16 {
				t.Errorf("%d bytes and %d spans are held for %d bytes", cap(p.buf), cap(p.spans), len(sent))
			}
		}
	})
}

// FuzzSession: any split of a stream gives the same replies, the same end and the
// same keys; memory is bounded, and a closed session leaves no waiter behind.
func FuzzSession(f *testing.F) {
	addSeeds(f)
	const maxUnsent = 1 << 16
	f.Fuzz(func(t *testing.T, sent []byte, split uint16) {
		run := func(piece int) string {
			limits := store.Limits{MaxBytes: 1 << 16, MaxEntries: 1000}
			p := newPeer(store.NewEngine(limits), sessionConfig{maxUnsent: maxUnsent, normalizeAttemptKeys: true})
			var out bytes.Buffer
			var err *refusal
			for part := range slices.Chunk(sent, piece) {
				var replies []byte
				replies, err = p.send(part)
				out.Write(replies)
				// One reply for a pending wait is not checked against the bound.
				if len(replies) > maxUnsent+len(sent) {
					t.Errorf("%d bytes of replies", len(replies))
				}
				if err != nil {
					break
				}
			}
			e := p.session.engine
			if e.Bytes() > limits.MaxBytes {
				t.Errorf("the engine holds %d bytes", e.Bytes())
			}
			p.session.close()
			if n := e.NumWaiters(); n != 0 || p.session.waitingKeys != 0 || p.session.waitingBytes != 0 {
				t.Errorf("%d waiters are left", n)
			}
			var state strings.Builder
			fmt.Fprintf(&state, "%x %v %d", out.Bytes(), err, e.Bytes())
			for key, value := range e.All() {
				fmt.Fprintf(&state, " %q=%q", key, value)
			}
			return state.String()
		}
		whole, parts := run(len(sent)+1), run(pieceOf(split))
		// The bound on unsent replies depends on how often they are taken.
		if whole != parts && !strings.Contains(whole, "would be unsent") {
			t.Errorf("pieces of %d: %s\nin one piece: %s", pieceOf(split), parts, whole)
		}
	})
}
