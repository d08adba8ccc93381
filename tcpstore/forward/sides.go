package forward

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"time"

	"rallypoint/core/peer"
	"rallypoint/internal/backoff"
)

const (
	// sideTimeout limits the time before the first byte of a connection to another port.
	sideTimeout = 5 * time.Second

	// ownerPatience is how long a program may take to accept a connection, before which the
	// kernel does not reveal its user.
	ownerPatience = 2 * time.Second
)

// AskPort tells the far end of a connection to the store's node which port of it is meant.
func AskPort(conn net.Conn, port int) error {
	_, err := conn.Write(binary.BigEndian.AppendUint16(nil, uint16(port)))
	return err
}

// SidesOptions are the settings of Sides.
type SidesOptions struct {
	At     netip.Addr           // where this node's programs are reached
	May    func(port int) bool  // which ports
	Admit  func(net.Conn) error // whose programs; nil: every user's
	Logger *slog.Logger

	Refusals *Refusals // counts what May and Admit have refused; nil: nothing does
}

// Sides forwards the connections that other nodes' forwarders open to other ports of the store's
// node to the programs there. It resets a connection for which there is no program.
type Sides struct {
	opts    SidesOptions
	carrier *carrier
}

// NewSides returns Sides; the caller closes it.
func NewSides(opts SidesOptions) *Sides { return &Sides{opts, newCarrier(opts.Logger)} }

// Take carries a connection, and closes it.
func (s *Sides) Take(conn Conn) { s.carrier.take(conn, func(k *link) { s.carry(k, conn) }) }

// carry reaches the program for a connection, and has the loop carry it.
func (s *Sides) carry(k *link, conn Conn) {
	port, program, err := s.reach(conn)
	if err == nil {
		err = s.carrier.carry(k, program)
	} else {
		s.carrier.cut(k)
	}
	if err == nil || s.carrier.life.Err() != nil {
		return
	}
	level := slog.LevelInfo
	if errors.Is(err, syscall.ECONNREFUSED) { // the program is late: torch's client comes again
		level = slog.LevelDebug
	}
	s.opts.Logger.Log(context.Background(), level, fmt.Sprintf("a connection of another node to port %d was reset: %v", port, err))
}

// reach connects to the program that listens on the port that a connection asks for.
func (s *Sides) reach(conn Conn) (port int, program net.Conn, err error) {
	ctx, cancel := context.WithTimeout(s.carrier.life, sideTimeout)
	defer cancel()
	_ = conn.SetReadDeadline(time.Now().Add(sideTimeout))
	var asked [2]byte
	if _, err := io.ReadFull(conn, asked[:]); err != nil {
		return 0, nil, err
	}
	_ = conn.SetReadDeadline(time.Time{})
	port = int(binary.BigEndian.Uint16(asked[:]))
	if !s.opts.May(port) {
		s.opts.Refusals.add(refusedPort)
		return port, nil, errors.New("it is none of the forwarded ports; forward_ports= on all nodes adds some")
	}
	program, err = Dialer().DialContext(ctx, "tcp", netip.AddrPortFrom(s.opts.At, uint16(port)).String())
	if err != nil {
		return port, nil, err
	}
	if err := s.admit(ctx, program); err != nil {
		closeRaw(program)
		return port, nil, err
	}
	return port, program, nil
}

// admit checks the user of the program at the other end of a connection, which the kernel reveals
// once the program has accepted it.
func (s *Sides) admit(ctx context.Context, c net.Conn) error {
	if s.opts.Admit == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ownerPatience)
	defer cancel()
	pause := backoff.New(time.Millisecond, 100*time.Millisecond)
	for {
		err := s.opts.Admit(c)
		if err == nil || errors.Is(err, peer.ErrOtherUser) || !pause.Wait(ctx) {
			if err != nil && s.carrier.life.Err() == nil {
				s.opts.Refusals.add(refusedProgram)
			}
			return err
		}
	}
}

// Close ends all connections and waits until nothing of s runs any more.
func (s *Sides) Close() { s.carrier.stop() }
