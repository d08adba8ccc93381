package eventloop

import (
	"bytes"
	"testing"
)

// FuzzRecords cuts a stream into pieces and wants whole records, one at a time.
func FuzzRecords(f *testing.F) {
	f.Add([]byte{23, 3, 3, 0, 1, 9, 23, 3, 3, 0, 0, 23, 3, 3, 0xff, 0xff, 1}, []byte{1, 3}, uint16(3))
	f.Add(append([]byte{22, 3, 1, 1, 0}, make([]byte, 300)...), []byte{5, 255, 1}, uint16(512))
	f.Fuzz(func(t *testing.T, stream, cuts []byte, room uint16) {
		r := &Records{}
		b := make([]byte, int(room)+1)
		var out []byte
		rest := stream
		for i := 0; ; i++ {
			before := len(r.in)
			whole := r.left
			if whole == 0 {
				whole = wholeRecord(r.in)
			}
			n, err := r.Read(b)
			if (whole > 0) != (err == nil) || n > whole || whole > 0 && n != min(whole, len(b)) || len(r.in) != before-n {
				t.Fatalf("%d bytes, %v, of a record of %d", n, err, whole)
			}
			out = append(out, b[:n]...)
			if err == nil {
				continue
			}
			if len(rest) == 0 {
				break
			}
			n = 1
			if len(cuts) > 0 {
				n = 1 + int(cuts[i%len(cuts)])
			}
			n = min(n, len(rest))
			r.in, rest = append(r.in, rest[:n]...), rest[n:]
		}
		if !bytes.Equal(out, stream[:len(out)]) || len(r.in) != len(stream)-len(out) || r.left != 0 {
			t.Fatalf("%d of %d bytes, %d left", len(out), len(stream), len(r.in))
		}
		if len(r.in) >= RecordHead && BodyLen(r.in) <= MaxRecord && len(r.in) >= RecordHead+BodyLen(r.in) {
			t.Fatal("a whole record is left")
		}
	})
}
