package peer

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// tables are the lists of all TCP sockets of this network namespace. A socket of IPv6 that
// is connected to an IPv4 address is in the second one.
var tables = [...]string{"/proc/self/net/tcp", "/proc/self/net/tcp6"}

// scanTables finds a socket if NETLINK_SOCK_DIAG cannot be used. It reads the list of all sockets
// of the machine.
func scanTables(local, remote netip.AddrPort) (socket, error) {
	var failed error
	for _, name := range tables {
		f, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) && name != tables[0] { // a kernel without IPv6
			continue
		}
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		s, err := scanTable(f, withoutZone(local), withoutZone(remote))
		f.Close()
		if err == nil {
			return s, nil
		}
		if !errors.Is(err, errNoSocket) {
			failed = errors.Join(failed, err)
		}
	}
	if failed != nil {
		return socket{}, failed
	}
	return socket{}, errNoSocket
}

// Fields of a line: its number, both ends, state, queues, timer, retransmits, uid, timeout,
// inode.
const (
	fieldLocal  = 1
	fieldRemote = 2
	fieldState  = 3
	fieldUID    = 7
	fieldInode  = 9
)

// scanTable looks for the socket that is bound to remote and connected to local. A line
// that it does not understand is none.
func scanTable(r io.Reader, local, remote netip.AddrPort) (socket, error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) <= fieldInode {
			continue
		}
		if end, ok := parseEnd(fields[fieldLocal]); !ok || end != remote {
			continue
		}
		if end, ok := parseEnd(fields[fieldRemote]); !ok || end != local {
			continue
		}
		state, err1 := strconv.ParseUint(fields[fieldState], 16, 8)
		uid, err2 := strconv.ParseUint(fields[fieldUID], 10, 32)
		inode, err3 := strconv.ParseUint(fields[fieldInode], 10, 64)
		if err := errors.Join(err1, err2, err3); err != nil {
			return socket{}, err
		}
		s := socket{state: uint8(state), uid: uint32(uid)}
		if inode != 0 {
			s.inode = 1
		}
		return s, nil
	}
	if err := lines.Err(); err != nil {
		return socket{}, err
	}
	return socket{}, errNoSocket
}

// parseEnd reads an address and a port as /proc/net/tcp has them: the address in words of
// 4 bytes, each written as a number of this machine.
func parseEnd(text string) (netip.AddrPort, bool) {
	words, port, ok := strings.Cut(text, ":")
	if !ok || len(words) != 8 && len(words) != 32 {
		return netip.AddrPort{}, false
	}
	b, err := hex.DecodeString(words)
	if err != nil {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	addr, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(addr.Unmap(), uint16(number)), true
}
