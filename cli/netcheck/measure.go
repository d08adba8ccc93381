package netcheck

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Limits of a measurement.
const (
	pings       = 10
	sendTime    = 200 * time.Millisecond
	maxSend     = 64 << 20 // bytes
	dialLimit   = 2 * time.Second
	maxServed   = 8                // connections at once
	serveLimit  = 10 * time.Second // of a connection
	maxIdleTime = 5 * time.Second  // of a measurement beyond its sending
)

// A connection begins with the server's key and what is measured.
const (
	opPing byte = 'P' // each byte comes back
	opSend byte = 'S' // at the end come how many there were, and the time between the first and the last
	keyLen      = 16
)

// responder answers measurements until it is closed.
type responder struct {
	key      []byte
	listener net.Listener
	serving  sync.WaitGroup
	slots    chan struct{}
}

func newResponder(key []byte) (*responder, error) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return nil, err
	}
	r := &responder{key: key, listener: l, slots: make(chan struct{}, maxServed)}
	r.serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // it is closed
			}
			select {
			case r.slots <- struct{}{}:
				r.serving.Go(func() {
					r.serve(conn)
					<-r.slots
				})
			default:
				_ = conn.Close()
			}
		}
	})
	return r, nil
}

func (r *responder) port() int { return r.listener.Addr().(*net.TCPAddr).Port }

func (r *responder) close() {
	_ = r.listener.Close()
	r.serving.Wait()
}

func (r *responder) serve(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(serveLimit))
	head := make([]byte, keyLen+1)
	if _, err := io.ReadFull(conn, head); err != nil || !bytes.Equal(head[:keyLen], r.key) {
		return
	}
	if _, err := conn.Write(head[keyLen:]); err != nil {
		return
	}
	buffer := make([]byte, 256<<10)
	switch head[keyLen] {
	case opPing:
		for range pings {
			if _, err := io.ReadFull(conn, buffer[:1]); err != nil {
				return
			}
			if _, err := conn.Write(buffer[:1]); err != nil {
				return
			}
		}
	case opSend:
		var first, last time.Time
		var sum uint64
		for sum < maxSend {
			n, err := conn.Read(buffer)
			if n > 0 {
				if last = time.Now(); first.IsZero() {
					first, n = last, 0 // whose time is not known
				}
				sum += uint64(n)
			}
			if err != nil {
				break
			}
		}
		answer := binary.BigEndian.AppendUint64(nil, sum)
		_, _ = conn.Write(binary.BigEndian.AppendUint64(answer, uint64(last.Sub(first))))
	}
}

// path is what was measured towards one address of another node.
type path struct {
	From      int           `json:"from"`
	To        int           `json:"to"`
	Address   Address       `json:"address"`
	Source    string        `json:"source"` // this node's interface
	Latency   time.Duration `json:"latency"`
	Bandwidth float64       `json:"bandwidth"` // bits a second
	Error     string        `json:"error,omitempty"`
}

// measure measures the path. It ends within some seconds, and sends at most maxSend bytes.
func (p *path) measure(ctx context.Context, port int, key []byte, own []Address) error {
	conn, err := open(ctx, p.Address.IP, port, key, opPing)
	if err != nil {
		return err
	}
	if a, ok := conn.LocalAddr().(*net.TCPAddr); ok {
		ip := a.AddrPort().Addr().Unmap().WithZone("")
		if i := slices.IndexFunc(own, func(o Address) bool { return o.IP == ip }); i >= 0 {
			p.Source = own[i].Interface
		}
	}
	times := make([]time.Duration, pings)
	one := []byte{0}
	for i := range times {
		start := time.Now()
		if _, err = conn.Write(one); err == nil {
			_, err = io.ReadFull(conn, one)
		}
		if err != nil {
			_ = conn.Close()
			return err
		}
		times[i] = time.Since(start)
	}
	_ = conn.Close()
	slices.Sort(times)
	p.Latency = times[len(times)/2]

	conn, err = open(ctx, p.Address.IP, port, key, opSend)
	if err != nil {
		return err
	}
	defer conn.Close()
	chunk := make([]byte, 256<<10)
	end := time.Now().Add(sendTime)
	_ = conn.SetWriteDeadline(end) // a slow path takes less than a chunk
	for sent := 0; sent < maxSend && time.Now().Before(end); {
		n, err := conn.Write(chunk[:min(len(chunk), maxSend-sent)])
		sent += n
		if late := net.Error(nil); err != nil && !(errors.As(err, &late) && late.Timeout()) {
			return err
		}
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	answer := make([]byte, 16)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return fmt.Errorf("it has not answered how much arrived: %w", err)
	}
	sum, took := binary.BigEndian.Uint64(answer), time.Duration(binary.BigEndian.Uint64(answer[8:]))
	if took > 0 {
		p.Bandwidth = float64(8*sum) / took.Seconds()
	}
	return nil
}

func open(ctx context.Context, ip netip.Addr, port int, key []byte, op byte) (net.Conn, error) {
	d := net.Dialer{Timeout: dialLimit}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(ip.String(), strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(maxIdleTime))
	echo := make([]byte, 1)
	if _, err = conn.Write(append(bytes.Clone(key), op)); err == nil {
		_, err = io.ReadFull(conn, echo)
	}
	if err != nil || echo[0] != op {
		_ = conn.Close()
		return nil, errors.New("another program, or another machine, answers there")
	}
	return conn, nil
}

// keyText and parseKey are a key's form in the store.
func keyText(key []byte) string { return hex.EncodeToString(key) }

func parseKey(text string) ([]byte, error) {
	key, err := hex.DecodeString(text)
	if err == nil && len(key) != keyLen {
		err = errors.New("a key of another length")
	}
	return key, err
}
