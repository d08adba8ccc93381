package etcdstore

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestMessageRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m message
		var want []field
		for id := range rapid.IntRange(0, 8).Draw(t, "fields") {
			id := id*100 + 1
			if rapid.Bool().Draw(t, "kind") {
				b := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
				m = m.message(id, b)
				want = append(want, field{id: id, bytes: b})
				continue
			}
			n := rapid.Int64().Draw(t, "number")
			if m = m.number(id, n); n != 0 {
				want = append(want, field{id: id, number: n})
			}
		}
		i := 0
		err := decode(m, func(f field) error {
			if f.id != want[i].id || f.number != want[i].number || string(f.bytes) != string(want[i].bytes) {
				t.Fatalf("have %v, want %v", f, want[i])
			}
			i++
			return nil
		})
		if err != nil || i != len(want) {
			t.Fatal(err, i, len(want))
		}
	})
}

// The bytes are those of the protocol buffers' own definition.
func TestMessageBytes(t *testing.T) {
	for _, c := range []struct {
		have message
		want string
	}{
		{message(nil).number(1, 150), "\x08\x96\x01"},
		{message(nil).text(2, "testing"), "\x12\x07testing"},
		{message(nil).number(1, -2), "\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"},
		{message(nil).number(1, 0).text(2, "").flag(3, false), ""},
		{message(nil).flag(8, true).message(64, nil), "\x40\x01\x82\x04\x00"},
		{message(unchanged("k", 0)), "\x10\x02\x1a\x01k\x30\x00"},
		{message(absent("k", "l")), "\x10\x01\x1a\x01k\x28\x00\x82\x04\x01l"},
		{message(below("k", nil)), "\x08\x02\x10\x03\x1a\x01k\x3a\x00"},
		{message(createdAt("k", 5)), "\x10\x01\x1a\x01k\x28\x05"},
	} {
		equal(t, string(c.have), c.want)
	}
	// Fixed-size fields are skipped.
	var seen []int
	check(t, decode([]byte("\x0d1234\x1112345678\x18\x01"), func(f field) error { seen = append(seen, f.id); return nil }))
	if len(seen) != 1 || seen[0] != 3 {
		t.Fatal(seen)
	}
}

func TestPrefixEnd(t *testing.T) {
	for prefix, want := range map[string]string{"a": "b", "a\xff": "b", "/x/": "/x0", "\xff\xff": "\x00", "": "\x00"} {
		equal(t, prefixEnd(prefix), want)
	}
}

// Whatever a server sends, reading it does no harm.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(message(nil).message(1, message(nil).number(3, 7)).message(2, message(nil).text(1, "k").number(3, math.MaxInt64))))
	f.Add([]byte(message(nil).message(11, message(nil).number(1, 1).message(2, message(nil).text(1, "k")))))
	f.Add([]byte("\x0d1234\x1112345678\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, m []byte) {
		_, _ = decodeRangeResponse(m)
		_, _ = decodeTxnResponse(m)
		_, _ = decodeWatchResponse(m)
		_, _ = decodeLeaseResponse(m)
		_, _ = decodeStatus(m)
		_, _ = decodeToken(m)
	})
}
