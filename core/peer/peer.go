// Package peer tells which user has opened a TCP connection within this machine, and
// refuses those of other users.
package peer

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"rallypoint/core/params"
	"rallypoint/internal/host"
	"rallypoint/internal/printable"
)

// Errors of Admit.
var (
	// ErrOtherUser tells that a connection is another user's.
	ErrOtherUser = errors.New("it is another user's connection")
	// errUnknownUser says that the connection's user cannot be determined.
	errUnknownUser = errors.New("it cannot be learnt which user's connection it is")
	// ErrEnded is an errUnknownUser: no process has the other end any more, so that nobody is refused.
	ErrEnded = fmt.Errorf("%w: it was reset, or its process has closed it already", errUnknownUser)
)

// Check decides who may connect to a listener of a job. A nil *Check admits every
// connection. Its methods are safe for concurrent use.
type Check struct {
	users params.LoopbackUsers
	self  uint32
	// near tells that the listener is on a loopback address: all connections come from
	// this machine. Else those of other machines pass.
	near bool

	lookUp func(d *diag, local, remote netip.AddrPort) (socket, error)
	routed func(netip.Addr) (bool, error) // this machine is where packets to an address go
	locals func() ([]netip.Addr, error)   // addresses of its interfaces, also link-local ones
	others func() bool                    // other users may have processes on this machine
	// overflow is the id of all users that this process's user namespace does not map. ambiguous
	// says that there may be such users.
	overflow  uint32
	ambiguous bool
}

// NewCheck returns the check of a listener of a job's node: nil with loopback_check=0, and
// for a listener that other machines reach, unless the job is on one machine.
func NewCheck(p *params.Params, listen net.Addr) *Check {
	tcp, ok := listen.(*net.TCPAddr)
	switch {
	case !ok:
		return nil
	case tcp.IP.IsLoopback():
		return NewLoopbackCheck(p.LoopbackUsers)
	case !p.OneMachine():
		return nil
	}
	c := NewLoopbackCheck(p.LoopbackUsers)
	if c != nil {
		c.near = false
	}
	return c
}

// NewLoopbackCheck returns the check of a listener on a loopback address; nil if anyone may
// connect.
func NewLoopbackCheck(users params.LoopbackUsers) *Check {
	if users.Anyone {
		return nil
	}
	c := &Check{users: users, self: uint32(os.Geteuid()), near: true, lookUp: lookUp, routed: routedHere, locals: host.Addrs, others: otherUsers}
	c.overflow, c.ambiguous = overflowUser()
	return c
}

// Admit returns an error that names the user of an accepted connection if that user may not
// connect. It neither reads from nor writes to the connection. It refuses a connection that has
// ended, even if bytes have arrived on it.
func (c *Check) Admit(conn net.Conn) error { return c.ask(conn, false) }

// AdmitServer returns an error that names the user whose process has answered on a connection
// from this one, unless that is root or a user who may connect. It refuses a connection that has
// ended.
func (c *Check) AdmitServer(conn net.Conn) error { return c.ask(conn, true) }

func (c *Check) ask(conn net.Conn, server bool) error {
	if c == nil {
		return nil
	}
	local, ok1 := conn.LocalAddr().(*net.TCPAddr)
	remote, ok2 := conn.RemoteAddr().(*net.TCPAddr)
	if !ok1 || !ok2 {
		return fmt.Errorf("%w: it is no TCP connection", errUnknownUser)
	}
	here, there := canonical(local.AddrPort()), canonical(remote.AddrPort())
	if !c.concerns(here.Addr(), there.Addr()) {
		return nil
	}
	var d diag
	defer d.close()
	return c.judge(&d, here, there, func() error { return connected(conn) }, server)
}

// judge asks the kernel which user has the other end of a connection, and then whether this end
// is still connected. While it is, only its peer can be connected from the addresses in question.
// On a connection that was reset, Linux still delivers earlier data, but any process may have its
// addresses by now. alive reports whether this end is connected. It is also called first, because
// it is cheaper.
func (c *Check) judge(d *diag, here, there netip.AddrPort, alive func() error, server bool) error {
	var s socket
	err := alive()
	if err == nil {
		s, err = c.lookUp(d, here, there)
	}
	if err == nil || errors.Is(err, errNoSocket) {
		err = cmp.Or(alive(), err)
	}
	return c.decide(s, err, server)
}

// decide judges the kernel's answer about the other end, a server's or a client's, or its error.
// The kernel gives no answer about a socket that is not in the expected state.
func (c *Check) decide(s socket, err error, server bool) error {
	switch {
	case errors.Is(err, errUnavailable) && !c.others():
		return nil
	case errors.Is(err, ErrEnded):
		return ErrEnded
	case err != nil:
		return fmt.Errorf("%w: %w; loopback_check=0 turns the check off", errUnknownUser, err)
	case s.inode == 0:
		return ErrEnded
	case !s.open() && !(server && s.held()):
		return fmt.Errorf("%w: its process has ended its sending side already (TCP state %d)", errUnknownUser, s.state)
	case s.uid == c.overflow && c.ambiguous:
		return fmt.Errorf("%w: its user %d is none of this user namespace; loopback_check=0 turns the check off", ErrOtherUser, s.uid)
	case s.uid == c.self || c.users.Includes(s.uid) || server && s.uid == 0:
		return nil
	}
	return &otherUserError{s.uid, c.self}
}

// otherUserError is ErrOtherUser of a user. It reads their names when it is shown: most refusals are
// counted alone.
type otherUserError struct{ uid, self uint32 }

func (e *otherUserError) Error() string {
	return fmt.Sprintf("%v: user %s, where this process runs as %s; allow_uid=%d lets that user in", ErrOtherUser, named(passwdFile, e.uid), named(passwdFile, e.self), e.uid)
}

func (e *otherUserError) Unwrap() error { return ErrOtherUser }

// concerns reports whether a connection has to be asked about: remote is an address of this
// machine, or cannot be told from one.
func (c *Check) concerns(local, remote netip.Addr) bool {
	if c.near || remote == local || remote.IsLoopback() {
		return true
	}
	if here, err := c.routed(remote.WithZone("")); here && err == nil {
		return true
	}
	addrs, err := c.locals()
	return err != nil || slices.Contains(addrs, remote.WithZone(""))
}

// canonical is an address and port without the IPv6 form of an IPv4 address.
func canonical(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// named is a user id with its name, if the file of users has one. A directory of users is not
// asked: it may not answer, and a stranger would have the next connection wait for it.
func named(passwd string, uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	name := ""
	_ = eachLogin(passwd, func(of string, user uint64) bool {
		if user == uint64(uid) {
			name = of
		}
		return name == ""
	})
	if name == "" {
		return id
	}
	return fmt.Sprintf("%s (%s)", id, printable.Text(name))
}
