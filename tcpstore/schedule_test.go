package tcpstore

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"rallypoint/core/store"
)

// script is what a connection does: the pipeline it sends, and how.
type script struct {
	sent    []byte
	want    []byte // by a session without a socket
	write   int    // bytes at a time
	read    int
	late    bool // it reads nothing before it has written a good part
	narrow  bool // little room for what arrives
	halfway bool // it ends its stream after the last request
}

// drawScript draws a pipeline over the keys that begin with prefix.
func drawScript(t *rapid.T, prefix string) script {
	const most = 256 << 10 // bytes, either way
	alone := newPeer(store.NewEngine(store.Limits{}), sessionConfig{})
	sent, want := bytes.Clone(hello), bytes.Clone(hello[6:])
	alone.send(hello)
	for len(sent) < most && len(want) < most && rapid.IntRange(0, 9).Draw(t, "more") > 0 {
		key := fmt.Sprint(prefix, rapid.IntRange(0, 2).Draw(t, "key"))
		size := rapid.SampledFrom([]int{0, 5, 100, 5000, 70 << 10, 300 << 10}).Draw(t, "size")
		value := strings.Repeat("v", size)
		var request []byte
		switch op := rapid.SampledFrom([]opcode{opSet, opGet, opAppend, opCompareSet, opCheck, opMultiGet,
			opQueuePush, opQueuePop, opDelete, opWait, opPing}).Draw(t, "op"); op {
		case opSet, opQueuePush:
			request = msg(op, key, value)
		case opAppend:
			request = msg(op, key, value[:min(size, 100)])
		case opCompareSet:
			request = msg(op, key, "", value)
		case opCheck:
			request = msg(op, 2, key, prefix+"none")
		case opMultiGet:
			request = msg(op, 3, key, prefix+"0", prefix+"none")
		case opWait: // the key exists
			request = append(msg(opSet, key, value), msg(op, 1, key)...)
		case opPing:
			request = appendPing(nil, uint32(size))
		default:
			request = msg(op, key)
		}
		for range rapid.SampledFrom([]int{1, 1, 10, 1000, 10000}).Draw(t, "times") {
			reply, err := alone.send(request)
			if err != nil {
				t.Fatal(err)
			}
			sent, want = append(sent, request...), append(want, reply...)
			if len(sent) > most || len(want) > most {
				break
			}
		}
	}
	least := max(1, len(sent)/200) // or it takes too long
	return script{
		sent:    sent,
		want:    want,
		write:   max(least, rapid.SampledFrom([]int{1, 100, 10 << 10, most}).Draw(t, "write")),
		read:    max(1, len(want)/200, rapid.SampledFrom([]int{1, 1000, 100 << 10}).Draw(t, "read")),
		late:    rapid.Bool().Draw(t, "late"),
		narrow:  rapid.Bool().Draw(t, "narrow"),
		halfway: rapid.Bool().Draw(t, "halfway"),
	}
}

// run plays the script and compares the replies.
func (sc script) run(r raw) error {
	writing := make(chan struct{})
	var writer sync.WaitGroup
	defer writer.Wait()
	writer.Go(func() {
		began := sync.OnceFunc(func() { close(writing) })
		defer began()
		for rest := sc.sent; len(rest) > 0; {
			n, err := r.Write(rest[:min(len(rest), sc.write)])
			if err != nil {
				return // the reader notices
			}
			if rest = rest[n:]; len(sc.sent)-len(rest) > 32<<10 {
				began()
			}
		}
		if sc.halfway {
			r.CloseWrite()
		}
	})
	if sc.late {
		<-writing
	}
	var got []byte
	buf := make([]byte, sc.read)
	for len(got) < len(sc.want) {
		n, err := r.Read(buf)
		got = append(got, buf[:n]...)
		if err != nil {
			return fmt.Errorf("after %d of %d bytes: %w", len(got), len(sc.want), err)
		}
	}
	if !bytes.Equal(got, sc.want) {
		return fmt.Errorf("%d bytes, which are not the %d expected", len(got), len(sc.want))
	}
	if sc.halfway {
		if n, err := r.Read(buf); err != io.EOF {
			return fmt.Errorf("after the end: %d bytes, %w", n, err)
		}
	}
	return nil
}

// TestAnySchedule: however requests arrive and replies are taken, each connection
// gets the replies that it would get alone and without a network.
func TestAnySchedule(t *testing.T) {
	s, lines := newServer(t, Options{Loops: 2})
	checks := 0
	rapid.Check(t, func(rt *rapid.T) {
		checks++
		var wg sync.WaitGroup
		for i := range rapid.IntRange(1, 3).Draw(rt, "connections") {
			sc := drawScript(rt, fmt.Sprintf("/%d/%d/", checks, i))
			r := dialRaw(t, s)
			if sc.narrow {
				r = dialNarrow(t, s, 16<<10)
			}
			wg.Go(func() {
				defer r.Close()
				if err := sc.run(r); err != nil {
					rt.Errorf("%d bytes sent %d at a time, read %d at a time (%+v): %v",
						len(sc.sent), sc.write, sc.read, [3]bool{sc.late, sc.narrow, sc.halfway}, err)
				}
			})
		}
		wg.Wait()
	})
	if len(lines.With("WARN")) > 0 {
		t.Error("a client was refused")
	}
}
