package etcdlog

import (
	"bytes"
	"testing"

	"rallypoint/internal/etcdclient"
	"rallypoint/internal/testkit"
)

// The values that a run keeps stay as they are: nodes of several releases read them.
func TestStoredValues(t *testing.T) {
	g := generation{name: "G", lease: 300}
	testkit.Equal(t, string(g.encode()), "\x08\x01\x12\x01G\x18\xac\x02")
	testkit.Equal(t, testkit.Must(decodeGeneration(g.encode()))(t), g)
	s := snapshotKey{index: 5, state: []byte("s"), id: "i", parts: 2}
	testkit.Equal(t, string(s.encode()), "\x08\x01\x10\x05\x1a\x01s\x22\x01i\x28\x02")
	// Fields of other kinds are skipped.
	got := testkit.Must(decodeSnapshotKey(etcdclient.KeyValue{Modified: 7, Value: append([]byte("\x0d1234\x1112345678"), s.encode()...)}))(t)
	if got.modified != 7 || got.index != s.index || !bytes.Equal(got.state, s.state) || got.id != s.id || got.parts != s.parts {
		t.Fatalf("%+v", got)
	}
}

// Whatever another program has put there, reading it does no harm.
func FuzzDecode(f *testing.F) {
	f.Add(generation{name: "G", lease: 1}.encode())
	f.Add(snapshotKey{index: 1, id: "i", parts: 3}.encode())
	f.Add([]byte("\x0d1234\x1112345678\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = decodeGeneration(b)
		_, _ = decodeSnapshotKey(etcdclient.KeyValue{Value: b})
	})
}
