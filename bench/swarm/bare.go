package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/control/wire"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/eventloop"
)

// bareSwarm is many nodes of one run that one event loop serves. The nodes of a job have
// processors of their own, those here share the control plane's: what they spend is time that
// would be measured as its. Each has a session, a connection and the frames of a real node, and
// answers for itself.
type bareSwarm struct {
	poller *eventloop.Poller
	nodes  []*bareNode
	byFD   map[int32]*bareNode
	told   func(n *bareNode) error // what a node does when its update has changed; nil: nothing

	in, out []byte                // what has arrived and what is sent, of the node that is served
	decoded map[string]wire.Frame // by its bytes: a control plane says the same to many nodes

	began     time.Time
	beatEvery time.Duration // of one node; they take turns
	beats     int           // of all, so far
}

type bareNode struct {
	fd     int32
	rest   []byte // the beginning of a frame
	number uint64 // of its last request
	acked  uint64 // the answers up to this one have arrived
	place  rendezvous.Outcome
	update rendezvous.MembershipUpdate // the last one
}

const (
	bareHead    = 4   // bytes of a frame's length
	bareOpeners = 256 // how many nodes connect at one time
	bareRead    = 64 << 10
	bareDecoded = 1000 // frames that are remembered
	bareTick    = 10 * time.Millisecond
)

// gatherBare has n nodes form a round. The caller has them leave.
func gatherBare(ctx context.Context, addr string, n int, runID string) (*bareSwarm, error) {
	poller, err := eventloop.NewPoller()
	if err != nil {
		return nil, err
	}
	p := params.Default()
	p.RunID, p.Endpoint, p.Min, p.Max = runID, addr, n, n
	s := &bareSwarm{
		poller: poller, byFD: map[int32]*bareNode{}, in: make([]byte, bareRead),
		decoded: map[string]wire.Frame{}, began: time.Now(), beatEvery: p.LeaseTimeout / 3,
	}
	var mu sync.Mutex
	turns := make(chan struct{}, bareOpeners)
	err = each(n, func(int) error {
		turns <- struct{}{}
		defer func() { <-turns }()
		node, err := openBare(ctx, &p)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		s.nodes = append(s.nodes, node)
		s.byFD[node.fd] = node
		return poller.Add(int(node.fd))
	})
	for i := 0; i < len(s.nodes) && err == nil; i++ {
		err = s.request(s.nodes[i], rendezvous.Join{NodeRank: -1, RankHint: -1, StoreAddr: "127.0.0.1", StorePort: 1 + i})
	}
	if err == nil {
		err = s.await(ctx, "have their place", func(n *bareNode) bool { return n.place.Round > 0 })
	}
	if err != nil {
		s.leave()
		return nil, err
	}
	return s, nil
}

// openBare says hello, and takes the connection from the runtime.
func openBare(ctx context.Context, p *params.Params) (*bareNode, error) {
	dialer := net.Dialer{KeepAlive: wire.NoKeepAlive}
	conn, err := dialer.DialContext(ctx, "tcp", p.Endpoint)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	wire.SetUserTimeout(conn, p.LeaseTimeout)
	hello := wire.Hello{
		Version: wire.ProtocolVersion, Features: []string{wire.FeatureEcho}, RunID: p.RunID,
		Session: rendezvous.SessionID(rand.Text()), Label: "bench", Policy: p.Policy,
	}
	hello.Node, hello.Incarnation = p.Identity()
	frames := wire.FrameReader{In: bufio.NewReaderSize(conn, wire.ReadBuffer)}
	if _, err := (wire.ClientHandshake{Addr: conn.RemoteAddr()}).Run(conn, &frames, wire.AppendFrame(nil, hello)); err != nil {
		return nil, err
	}
	f, err := frames.NextFrame(wire.MaxFrame)
	if err != nil {
		return nil, err
	}
	welcome, ok := f.(wire.Welcome)
	if !ok || frames.In.Buffered() > 0 {
		return nil, fmt.Errorf("a hello was answered by %+v and %d bytes", f, frames.In.Buffered())
	}
	fd, err := eventloop.TakeOver(conn)
	return &bareNode{fd: int32(fd), update: welcome.Notice}, err
}

// await serves the nodes until all of them have what the function says that one has.
func (bs *bareSwarm) await(ctx context.Context, what string, has func(n *bareNode) bool) error {
	for left := bs.nodes; ; {
		for len(left) > 0 && has(left[0]) {
			left = left[1:]
		}
		if len(left) == 0 {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%d of %d nodes may not have %s: %w", len(left), len(bs.nodes), what, ctx.Err())
		}
		if err := bs.turn(); err != nil {
			return err
		}
	}
}

// turn waits a while for something to arrive, and has the nodes answer it.
func (bs *bareSwarm) turn() error {
	now := time.Now()
	for due := int(now.Sub(bs.began) * time.Duration(len(bs.nodes)) / bs.beatEvery); bs.beats < due; bs.beats++ {
		if err := bs.send(bs.nodes[bs.beats%len(bs.nodes)], wire.Beat{}); err != nil {
			return err
		}
	}
	events, err := bs.poller.Wait(true, now.Add(bareTick))
	for i := 0; i < len(events) && err == nil; i++ {
		if n := bs.byFD[events[i].Fd]; n != nil {
			err = bs.receive(n, events[i].Events&unix.EPOLLRDHUP != 0)
		}
	}
	return err
}

// receive takes what has arrived for a node. There is no further event for what it leaves.
func (bs *bareSwarm) receive(n *bareNode, ended bool) error {
	for {
		had := copy(bs.in, n.rest)
		got, errno := eventloop.Receive(n.fd, bs.in[had:])
		switch {
		case errno == unix.EAGAIN:
			return nil
		case errno != 0:
			return fmt.Errorf("a node's connection has failed: %w", errno)
		case got == 0:
			return errors.New("the control plane has ended a node's connection, or sends a frame that is too long")
		}
		rest, err := bs.take(n, bs.in[:had+got])
		n.rest = append(n.rest[:0], rest...)
		if err != nil || !ended && had+got < len(bs.in) {
			return err
		}
	}
}

// take has a node hear the frames that have arrived, and returns what begins another.
func (bs *bareSwarm) take(n *bareNode, b []byte) (rest []byte, err error) {
	for len(b) >= bareHead && err == nil {
		size := bareHead + int(binary.LittleEndian.Uint32(b))
		if len(b) < size {
			break
		}
		var f wire.Frame
		if f, err = bs.decode(b[:size]); err == nil {
			err = bs.hear(n, f)
		}
		b = b[size:]
	}
	return b, err
}

func (bs *bareSwarm) decode(b []byte) (wire.Frame, error) {
	if f, known := bs.decoded[string(b)]; known {
		return f, nil
	}
	frames := wire.FrameReader{In: bufio.NewReader(bytes.NewReader(b))}
	f, err := frames.NextFrame(wire.MaxFrame)
	if err != nil {
		return nil, err
	}
	if len(bs.decoded) == bareDecoded {
		clear(bs.decoded)
	}
	bs.decoded[string(b)] = f
	return f, nil
}

func (bs *bareSwarm) hear(n *bareNode, f wire.Frame) error {
	switch f := f.(type) {
	case wire.Reply:
		if f.Err != nil {
			return f.Err
		}
		if f.Number == n.acked+1 {
			n.acked++
		}
		if place, joined := f.Result.(rendezvous.Outcome); joined {
			n.place = place
		}
	case wire.Notice:
		n.update = f.Notice
		if bs.told != nil {
			return bs.told(n)
		}
	case wire.Drop:
		return f.Err
	}
	return nil
}

func (bs *bareSwarm) request(n *bareNode, ev rendezvous.Event) error {
	n.number++
	f, ok := wire.NewRequest(ev, n.number, n.acked)
	if !ok {
		return fmt.Errorf("a %T is no request", ev)
	}
	return bs.send(n, f)
}

func (bs *bareSwarm) send(n *bareNode, f wire.Frame) error {
	bs.out = wire.AppendFrame(bs.out[:0], f)
	if sent, errno := eventloop.Send(n.fd, bs.out); sent < len(bs.out) {
		return fmt.Errorf("%d of %d bytes were sent to the control plane: %w", sent, len(bs.out), errno)
	}
	return nil
}

func (bs *bareSwarm) leave() {
	for _, n := range bs.nodes {
		_ = bs.send(n, wire.Goodbye{})
		unix.Close(int(n.fd))
	}
	bs.poller.Close()
}
