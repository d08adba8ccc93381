package world

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rallypoint/internal/testkit"
)

// sample is a world in which no two numbers are the same.
var sample = World{Round: 7, Rank: 5, Size: 8, LocalRank: 1, LocalSize: 2, Node: 3, Nodes: 4, Carried: 6, StoreAddr: "10.0.0.7", StorePort: 2940, Generation: "G"}

// slot reads a slot as the page says.
func slot(b []byte, turn byte) (w World) {
	at := b[64+int(turn&1)*448:]
	n := func(i int) int { return int(binary.LittleEndian.Uint32(at[8+4*i:])) }
	text := func(from, size int) string {
		text, _, _ := strings.Cut(string(at[from:from+size]), "\x00")
		return text
	}
	return World{
		Round: binary.LittleEndian.Uint64(at), Rank: n(0), Size: n(1), LocalRank: n(2), LocalSize: n(3), Node: n(4), Nodes: n(5), StorePort: n(6), Carried: n(7),
		Generation: text(64, 64), StoreAddr: text(128, 320),
	}
}

func read(t *testing.T, r *Record) []byte { return testkit.Must(os.ReadFile(r.Path()))(t) }

// TestLayout holds the record against docs/world-record.md.
func TestLayout(t *testing.T) {
	r := testkit.Must(Create(filepath.Join(t.TempDir(), "w"), sample))(t)
	b := read(t, r)
	if len(b) != 2048 || string(b[:8]) != "rp-world" || b[8] != 1 || binary.LittleEndian.Uint32(b[12:]) != 2048 || b[24] != 0 {
		t.Errorf("the record begins with %x", b[:64])
	}
	if got := slot(b, b[24]); got != sample {
		t.Errorf("got %+v", got)
	}
	next := sample
	for round := uint64(8); round < 300; round++ { // the turn begins again
		next.Round, next.Rank = round, int(round)
		before := read(t, r)
		if err := r.Move(next); err != nil {
			t.Fatal(err)
		}
		b := read(t, r)
		if got := slot(b, b[24]); got != next || b[24] == before[24] {
			t.Fatalf("turn %d: %+v", b[24], got)
		}
		if slot(b, before[24]) != slot(before, before[24]) {
			t.Fatalf("turn %d: the slot that workers may read was written", b[24])
		}
	}
	if err := r.End(299); err != nil || binary.LittleEndian.Uint64(read(t, r)[16:]) != 299 {
		t.Errorf("%v, %x", err, read(t, r)[16:24])
	}
	if err := r.Lose(strings.Repeat("x", 5000)); err != nil {
		t.Fatal(err)
	}
	if b := read(t, r); len(b) != 2048 || b[25] != 1 || b[2047] != 0 || b[2046] != 'x' {
		t.Errorf("lost: %d bytes", len(b))
	}
}

// TestSaid reads what a worker writes.
func TestSaid(t *testing.T) {
	r := testkit.Must(Create(filepath.Join(t.TempDir(), "w"), sample))(t)
	if said, err := r.Read(); err != nil || said != (Said{}) {
		t.Errorf("a new record: %+v, %v", said, err)
	}
	if got := Entered(r.Path()); got != 0 {
		t.Errorf("entered %d", got)
	}
	f := testkit.Must(os.OpenFile(r.Path(), os.O_RDWR, 0))(t)
	defer f.Close()
	for offset, value := range map[int64]uint64{32: 1, 40: 7, 48: 6, 16: 5} {
		_ = testkit.Must(f.WriteAt(binary.LittleEndian.AppendUint64(nil, value), offset))(t)
	}
	if said, err := r.Read(); err != nil || said != (Said{Can: true, Waits: 7, Entered: 6, Over: 5}) {
		t.Errorf("%+v, %v", said, err)
	}
	if got := Entered(r.Path()); got != 6 {
		t.Errorf("entered %d", got)
	}
}

// TestSpoiled: whatever a worker does to its file, the agent gets an error and writes nothing
// elsewhere.
func TestSpoiled(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"cut":     func(path string) error { return os.Truncate(path, 10) },
		"removed": os.Remove,
		"replaced": func(path string) error {
			if err := os.Rename(path, path+".old"); err != nil {
				return err
			}
			return os.WriteFile(path, []byte("mine"), 0o600)
		},
	} {
		r := testkit.Must(Create(filepath.Join(t.TempDir(), "w"), sample))(t)
		if err := spoil(r.Path()); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read(); err == nil {
			t.Errorf("%s: read", name)
		}
		_ = r.Move(sample)
		if text, err := os.ReadFile(r.Path()); name == "replaced" && string(text) != "mine" {
			t.Errorf("%s: it holds %q, %v", name, text, err)
		}
		_ = Entered(r.Path())
	}
	if Entered("") != 0 || Entered(t.TempDir()) != 0 {
		t.Error("a round without a record")
	}
}

// TestTooLong: an address that has no room is refused, and not cut.
func TestTooLong(t *testing.T) {
	long := sample
	long.StoreAddr = strings.Repeat("a", 320)
	if _, err := Create(filepath.Join(t.TempDir(), "w"), long); err == nil {
		t.Error("made")
	}
	r := testkit.Must(Create(filepath.Join(t.TempDir(), "w"), sample))(t)
	if err := r.Move(long); err == nil || slot(read(t, r), read(t, r)[24]) != sample {
		t.Errorf("moved: %v", err)
	}
}
