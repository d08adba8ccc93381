package forward

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"

	"rallypoint/internal/testkit"
)

// side is what one end of a link does: it sends the first n bytes of its stream in pieces, reads
// what the other sends at its own pace, and ends its stream, or breaks the connection.
type side struct {
	seed   uint64 // of its stream
	n      int
	breaks bool
	slow   bool // the kernel has little room for what it is sent
}

// pieceSizes are those around which a loop does something else.
var pieceSizes = []int{1, 7, 40, maxPiece - 23, maxPiece - 22, maxPiece - 21, maxPiece, maxPiece + 1,
	16<<10 - 1, 16 << 10, 16<<10 + 1, carried - 1, carried, carried + 1, 3 * carried}

// stream fills b with a part of a side's stream that begins at from.
func (s side) stream(b []byte, from int) {
	var word [8]byte
	for i := range b {
		at := from + i
		if i == 0 || at%8 == 0 {
			binary.LittleEndian.PutUint64(word[:], (s.seed+uint64(at/8))*0x9e3779b97f4a7c15)
		}
		b[i] = word[at%8]
	}
}

// send sends the stream and ends it.
func (s side) send(c Conn, r *rand.Rand) error {
	for at := 0; at < s.n; {
		b := make([]byte, min(s.n-at, pieceSizes[r.IntN(len(pieceSizes))]))
		s.stream(b, at)
		n, err := c.Write(b)
		if at += n; err != nil {
			return err
		}
	}
	if s.breaks {
		closeRaw(c)
		return nil
	}
	return c.CloseWrite()
}

// receive reads the stream of other until it ends or breaks off, and returns how much came.
func (s side) receive(c Conn, other side, r *rand.Rand) (at int, err error) {
	b, want := make([]byte, 2*carried), make([]byte, 2*carried)
	for err == nil {
		var n int
		n, err = c.Read(b[:1+r.IntN(len(b))])
		other.stream(want[:n], at)
		if !bytes.Equal(b[:n], want[:n]) {
			return at, errOther
		}
		at += n
	}
	return at, err
}

var errOther = errors.New("other bytes come than were sent")

// run does all that a side does.
func (s side) run(c Conn, other side, r *rand.Rand) error {
	of := rand.New(rand.NewPCG(r.Uint64(), 1))
	sending := testkit.Go(func() error { return s.send(c, of) })
	at, err := s.receive(c, other, r)
	sent := <-sending
	broken := s.breaks || other.breaks
	switch {
	case errors.Is(err, errOther), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(sent, os.ErrDeadlineExceeded):
	case err == io.EOF && at == other.n && !other.breaks: // its end
		err = nil
	case err == io.EOF && broken && sent != nil: // the kernel tells of a reset once, here to the writer
		return nil
	case err != io.EOF && broken:
		return nil
	}
	if err == nil && (sent == nil || broken) {
		return nil
	}
	return fmt.Errorf("behind %d of %d bytes: %w; its own are sent: %v", at, other.n, err, sent)
}

func drawSide(r *rand.Rand) side {
	s := side{seed: r.Uint64(), breaks: r.IntN(4) == 0, slow: r.IntN(2) == 0}
	for range r.IntN(6) {
		s.n += pieceSizes[r.IntN(len(pieceSizes))]
	}
	return s
}

// TestForwarderAgainstAModel: whatever the two ends of many links do at a time, each gets the bytes
// of the other in their order, and then its end; one that breaks off never looks like an end.
func TestForwarderAgainstAModel(t *testing.T) {
	const links = 2 * maxPieces
	seed := rand.Uint64()
	both(t, func(t *testing.T, secured bool) {
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 0))
		var workers, stores [links]side
		for i := range links {
			workers[i], stores[i] = drawSide(r), drawSide(r)
		}
		failed := make(chan error, 2*links)
		var ended sync.WaitGroup
		ended.Add(2 * links)
		s := newFar(t, secured, func(c Conn) {
			var which [1]byte
			if _, err := io.ReadFull(c, which[:]); err != nil {
				failed <- err
				return
			}
			i := int(which[0])
			defer ended.Done()
			if stores[i].slow {
				_ = below(c).(*net.TCPConn).SetReadBuffer(64 << 10)
			}
			if err := stores[i].run(c, workers[i], rand.New(rand.NewPCG(seed, uint64(i)))); err != nil {
				failed <- fmt.Errorf("the store's end of link %d: %w", i, err)
			}
		})
		f, _ := newForwarder(t, s, func(o *Options) {
			o.Accept = admitting(func(c net.Conn) error { return c.(*net.TCPConn).SetWriteBuffer(32 << 10) })
			o.Dial = func(ctx context.Context, port int) (Conn, error) {
				c, err := s.dial(ctx, port)
				if err == nil {
					err = below(c).(*net.TCPConn).SetWriteBuffer(32 << 10)
				}
				return c, err
			}
		})
		for i := range links {
			go func() {
				defer ended.Done()
				c := worker(t, f.Addr())
				if workers[i].slow {
					_ = c.SetReadBuffer(64 << 10)
				}
				_, err := c.Write([]byte{byte(i)})
				if err == nil {
					err = workers[i].run(c, stores[i], rand.New(rand.NewPCG(seed, links+uint64(i))))
				}
				if err != nil {
					failed <- fmt.Errorf("the worker's end of link %d: %w", i, err)
				}
			}()
		}
		ended.Wait()
		close(failed)
		for err := range failed {
			t.Error(err)
		}
		testkit.Eventually(t, "all links have ended", func() bool { return f.open() == 0 })
	})
}
