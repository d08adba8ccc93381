package wire

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// written is a connection that takes everything, and notes each write and when it came.
type written struct {
	net.Conn
	began  time.Time
	writes []time.Duration
	all    []byte
}

func (w *written) Write(b []byte) (int, error) {
	w.writes, w.all = append(w.writes, time.Since(w.began)), append(w.all, b...)
	return len(b), nil
}

func (w *written) Close() error                     { return nil }
func (w *written) CloseWrite() error                { return nil }
func (w *written) SetWriteDeadline(time.Time) error { return nil }

// TestLateReplies: one is written together with the next frame, in their order, or alone
// after its time, or at the end, and no other write comes for it.
func TestLateReplies(t *testing.T) {
	reply, beat := Reply{Number: 7}, Beat{Echo: true}
	for _, test := range []struct {
		name   string
		do     func(o *Outbox)
		writes []time.Duration
		frames []Frame
	}{
		{"with the next frame", func(o *Outbox) {
			o.SendReplyLate(reply, time.Second)
			time.Sleep(time.Second / 2)
			o.Send(beat)
			time.Sleep(time.Minute)
			o.Send(beat)
		}, []time.Duration{time.Second / 2, time.Second/2 + time.Minute}, []Frame{reply, beat, beat}},
		{"alone", func(o *Outbox) {
			o.SendReplyLate(reply, time.Second)
			time.Sleep(time.Second / 2)
			o.SendReplyLate(reply, time.Second)
			time.Sleep(time.Minute - time.Second/2)
			o.SendReplyLate(reply, time.Second)
			time.Sleep(time.Minute)
		}, []time.Duration{time.Second, time.Minute + time.Second}, []Frame{reply, reply, reply}},
		{"at the end", func(o *Outbox) { o.SendReplyLate(reply, time.Second) }, []time.Duration{0}, []Frame{reply}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := &written{began: time.Now()}
				o := NewOutbox(conn, 1<<20, nil, nil)
				test.do(o)
				o.Finish()
				<-o.Ended()
				var want []byte
				for _, f := range test.frames {
					want = AppendFrame(want, f)
				}
				if !slices.Equal(conn.writes, test.writes) || !bytes.Equal(conn.all, want) {
					t.Errorf("%x was written at %v, want %x at %v", conn.all, conn.writes, want, test.writes)
				}
			})
		})
	}
}

// TestOutboxEnds: it has a goroutine while it writes only, and tells when it has written all,
// however it ends and whatever it was sent before.
func TestOutboxEnds(t *testing.T) {
	beat := Beat{Echo: true}
	for name, end := range map[string]func(o *Outbox){
		"finish": (*Outbox).Finish,
		"keep":   (*Outbox).FinishKeeping,
		"cut":    func(o *Outbox) { o.Cut(net.ErrClosed) },
	} {
		for _, frames := range []int{0, 1, 2} {
			t.Run(fmt.Sprint(name, " after ", frames), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					conn := &written{began: time.Now()}
					o := NewOutbox(conn, 1<<20, nil, nil)
					for range frames {
						o.Send(beat)
						synctest.Wait()
						if o.running {
							t.Error("what has nothing to write runs")
						}
					}
					end(o)
					o.Cut(net.ErrClosed) // once more
					<-o.Ended()
					if o.Send(beat) || len(conn.writes) != frames {
						t.Errorf("%d frames were written at %v, and there may be more", frames, conn.writes)
					}
				})
			})
		}
	}
}

// TestOutboxesShareSums: unsent bytes are in the sums until they are sent, or thrown away.
func TestOutboxesShareSums(t *testing.T) {
	var all, some atomic.Int64
	want := func(a, b int64) {
		t.Helper()
		if all.Load() != a || some.Load() != b {
			t.Errorf("%d and %d bytes wait to be sent, want %d and %d", all.Load(), some.Load(), a, b)
		}
	}
	var peers []net.Conn
	var boxes []*Outbox
	for range 2 {
		ours, theirs := net.Pipe()
		o := NewOutbox(ours, 1<<20, nil, nil)
		o.CountIn(&all)
		peers, boxes = append(peers, theirs), append(boxes, o)
	}
	boxes[0].Hold(make([]byte, 100))
	boxes[0].CountIn(&some)
	boxes[1].SendBytes(make([]byte, 1000), KindNotice)
	want(1100, 100)
	_, _ = io.ReadFull(peers[1], make([]byte, 1000))
	boxes[1].Finish()
	<-boxes[1].Ended()
	want(100, 100)
	boxes[0].Cut(ErrSlow)
	<-boxes[0].Ended()
	want(0, 0)
	for _, p := range peers {
		p.Close()
	}
}
