package tcpstore

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/internal/testkit"
)

// TestStockGetOfDeletedKey: a stock client's get is a WAIT, and a GET once that is over. A key
// that is deleted between the two has then the value that it had, for that GET alone.
func TestStockGetOfDeletedKey(t *testing.T) {
	large := strings.Repeat("l", 3*shareFrom)
	a := newHelloPeer(t, sessionConfig{})
	b := a.join(t)
	get := msg(opGet, "/k")
	empty := msg(0, "")[1:]
	for _, value := range []string{"v", large} {
		b.expect(t, "set", msg(opSet, "/k", value), nil, "steps")
		a.expect(t, "wait", msg(opWait, 1, "/k"), []byte{replyStopWaiting}, "steps")
		b.expect(t, "delete", msg(opDelete, "/k"), msg(0, 1)[1:], "steps")
		a.expect(t, "get of "+value[:1], get, msg(0, value)[1:], "steps")
		a.expect(t, "get after it", get, empty, "steps")
	}

	a.expect(t, "wait", msg(opWait, 1, "/k"), nil, "steps")
	b.expect(t, "set", msg(opSet, "/k", "2"), nil, "steps")
	b.expect(t, "append", msg(opAppend, "/k", "3"), nil, "steps")
	b.expect(t, "delete", msg(opDelete, "/k"), msg(0, 1)[1:], "steps")
	if out := a.takeOut(nil); !bytes.Equal(out, []byte{replyStopWaiting}) {
		t.Errorf("the wait is answered by %x", out)
	}
	a.expect(t, "get after a wait", get, msg(0, "23")[1:], "steps")

	b.expect(t, "set", msg(opMultiSet, 2, "/k", "4", "/other", "o"), nil, "steps")
	a.expect(t, "wait for two", msg(opWait, 2, "/other", "/k"), []byte{replyStopWaiting}, "steps")
	b.expect(t, "delete", msg(opDelete, "/k"), msg(0, 1)[1:], "steps")
	a.expect(t, "multi_get", msg(opMultiGet, 2, "/k", "/other"), append(msg(0, "4")[1:], msg(0, "o")[1:]...), "steps")

	b.expect(t, "set", msg(opSet, "/k", "5"), nil, "steps")
	a.expect(t, "wait", msg(opWait, 1, "/k"), []byte{replyStopWaiting}, "steps")
	b.expect(t, "delete", msg(opDelete, "/k"), msg(0, 1)[1:], "steps")
	b.expect(t, "set again", msg(opSet, "/k", "6"), nil, "steps")
	a.expect(t, "get of the new key", get, msg(0, "6")[1:], "steps")

	a.expect(t, "wait", msg(opWait, 1, "/k"), []byte{replyStopWaiting}, "steps")
	b.expect(t, "delete", msg(opDelete, "/k"), msg(0, 1)[1:], "steps")
	a.expect(t, "another request", msg(opNumKeys), msg(0, 1)[1:], "steps")
	a.expect(t, "get after another request", get, empty, "steps")
}

// TestGetWaitsForDeletedKey: our client asks our server again about a value that is empty, as that
// of a missing key is. It waits for a key that is gone, and believes an empty value otherwise.
func TestGetWaitsForDeletedKey(t *testing.T) {
	for name, patience := range map[string]time.Duration{"do": 0, "try": guard} {
		t.Run(name, func(t *testing.T) {
			addr, conns := fakeServer(t)
			c, conn := dialServer(t, addr, conns, replyReady)
			empty := msg(0, "")[1:]
			result := make(chan []byte, 1)
			go func() { result <- testkit.Must(try(c, patience).Get(t.Context(), "k"))(t) }()
			take(t, conn, append(msg(opCheck, 1, "/k"), msg(opGet, "/k")...))
			conn.Write(append([]byte{replyReady}, empty...))
			conn.Write(msg(0, takeCompareSet(t, conn, "/k"))[1:])
			waits := <-conns
			defer waits.Close()
			welcomeBy(t, waits, replyReady)
			take(t, waits, msg(opWait, 1, "/k"))
			waits.Write([]byte{replyStopWaiting})
			take(t, conn, append(msg(opCheck, 1, "/k"), msg(opGet, "/k")...))
			conn.Write(append([]byte{replyReady}, empty...))
			takeCompareSet(t, conn, "/k")
			conn.Write(empty)
			if got := <-result; len(got) > 0 {
				t.Errorf("got %q", got)
			}

			values := make(chan [][]byte, 1)
			go func() { values <- testkit.Must(try(c, patience).MultiGet(t.Context(), []string{"a", "b", "c"}))(t) }()
			take(t, conn, append(msg(opCheck, 3, "/a", "/b", "/c"), msg(opMultiGet, 3, "/a", "/b", "/c")...))
			conn.Write(bytes.Join([][]byte{{replyReady}, empty, msg(0, "B")[1:], empty}, nil))
			takeCompareSet(t, conn, "/a")
			takeCompareSet(t, conn, "/c")
			conn.Write(append(empty, msg(0, "C")[1:]...))
			if got := <-values; string(bytes.Join(got, []byte{'|'})) != "|B|C" {
				t.Errorf("got %q", got)
			}
		})
	}
}

// takeCompareSet reads a COMPARE_SET that changes nothing, and returns the value that it expects.
func takeCompareSet(t *testing.T, conn net.Conn, key string) string {
	t.Helper()
	take(t, conn, msg(opCompareSet, key, "", "")[:1+8+len(key)])
	var values [2]string
	for i := range values {
		var size [8]byte // of a short value, little-endian
		testkit.Must(io.ReadFull(conn, size[:]))(t)
		value := make([]byte, size[0])
		testkit.Must(io.ReadFull(conn, value))(t)
		values[i] = string(value)
	}
	if values[0] != values[1] || len(values[0]) < 20 {
		t.Errorf("compare_set of %q", values)
	}
	return values[0]
}

// TestGetOfManyEmptyValues: values that are really empty are told from missing keys in few packets.
func TestGetOfManyEmptyValues(t *testing.T) {
	s, _ := newServer(t, Options{})
	c := newClient(t, s)
	var keys []string
	for i := range 3000 {
		keys = append(keys, fmt.Sprint("key", i))
	}
	testkit.Check(t, c.MultiSet(t.Context(), keys, make([][]byte, len(keys))))
	for i, value := range testkit.Must(c.MultiGet(t.Context(), keys))(t) {
		if len(value) > 0 {
			t.Fatalf("%s is %q", keys[i], value)
		}
	}
	if n := s.Stats().Keys; n != len(keys) {
		t.Errorf("%d keys are left", n)
	}
}

// TestGetsBesideDeletes: no get and no multi_get of our client, of which none may be answered by
// nothing, sees a key that others set and delete all the time as empty.
func TestGetsBesideDeletes(t *testing.T) {
	s, _ := newServer(t, Options{})
	var writers, readers sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		writer := newClient(t, s)
		writers.Go(func() {
			for {
				select {
				case <-done:
					testkit.Check(t, writer.MultiSet(t.Context(), []string{"a", "b"}, [][]byte{[]byte("v"), []byte("v")}))
					return
				default:
				}
				testkit.Check(t, writer.MultiSet(t.Context(), []string{"a", "b"}, [][]byte{[]byte("v"), []byte("v")}))
				testkit.Must(writer.Delete(t.Context(), "a"))(t)
				testkit.Must(writer.Delete(t.Context(), "b"))(t)
			}
		})
	}
	for range 3 {
		reader := newClient(t, s)
		readers.Go(func() {
			for range 300 {
				values := testkit.Must(reader.MultiGet(t.Context(), []string{"a", "b"}))(t)
				values = append(values, testkit.Must(reader.Get(t.Context(), "a"))(t))
				if string(bytes.Join(values, nil)) != "vvv" {
					t.Errorf("got %q", values)
				}
			}
		})
	}
	readers.Wait()
	close(done)
	writers.Wait()
}
