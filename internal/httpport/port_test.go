package httpport

import "testing"

// FuzzHeadEnd: a head ends at the same place in whatever parts it comes.
func FuzzHeadEnd(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nA: b\r\n\r\nrest"))
	f.Add([]byte("GET / HTTP/1.0\n\nrest"))
	f.Add([]byte("\n\r\n\n\r\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		whole := headEnd(data, 0)
		for seen, i := 0, 1; i <= len(data); seen, i = i, i+1 {
			end := headEnd(data[:i], seen)
			switch {
			case end == 0 && i == whole, end != 0 && end != whole:
				t.Fatalf("%q: %d after %d bytes, %d of all", data, end, i, whole)
			case end != 0:
				return
			}
		}
		if whole != 0 {
			t.Fatalf("%q: its end was never found", data)
		}
	})
}
