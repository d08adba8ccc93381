package control

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// opSet is the number of a key operation on the wire.
const opSet = 1

// TestNothingPlain listens to what a node and a control plane say: with a token none of
// the planted texts must show, without one all of them.
func TestNothingPlain(t *testing.T) {
	planted := []string{"planted-run", "planted-node", "planted-key", "planted-value", "planted-reason"}
	for name, keys := range map[string][]string{"with a token": {goodToken}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			var cfg Config
			p := controltest.Params("", 1)
			if keys != nil {
				p.TokenFile = testkit.TokenFile(t, keys...)
				cfg.Token = openToken(t, keys...)
			}
			s := newFakeServer(t, cfg)
			wiretap := newWiretap(t, s.addr)
			never := false
			p.RunID, p.NodeID, p.IsHost = planted[0], planted[1], &never
			controltest.MeetAt(&p, wiretap.addr)
			c := connected(t, p, controltest.NewObserver())
			o := controltest.Outcome(t, c.Start(controltest.Join()))
			set := rendezvous.KeyRequest{Round: o.Round, Op: opSet, Keys: []string{planted[2]}, Values: [][]byte{[]byte(planted[3])}}
			if _, err := c.Start(set).Wait(controltest.Context(t)); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Ask(controltest.Context(t), wiretap.addr, cfg.Token, planted[0], rendezvous.CloseRun{By: "me", Reason: planted[4]}); err != nil {
				t.Fatal(err)
			}
			heard := wiretap.heard()
			for _, text := range planted {
				if seen := bytes.Contains(heard, []byte(text)); seen == (keys != nil) {
					t.Errorf("%s is to be seen: %v, in %d bytes", text, seen, len(heard))
				}
			}
		})
	}
}

// wiretap forwards connections and keeps what both sides say.
type wiretap struct {
	addr string
	mu   sync.Mutex
	all  bytes.Buffer
}

func newWiretap(t *testing.T, target string) *wiretap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wiretap{addr: l.Addr().String()}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	forward := func(to, from net.Conn) {
		defer to.Close()
		_, _ = io.Copy(io.MultiWriter(w, to), from)
	}
	wg.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", target)
			if err != nil {
				near.Close()
				continue
			}
			wg.Go(func() { forward(far, near) })
			wg.Go(func() { forward(near, far) })
		}
	})
	return w
}

func (w *wiretap) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.Write(b)
}

func (w *wiretap) heard() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return bytes.Clone(w.all.Bytes())
}
