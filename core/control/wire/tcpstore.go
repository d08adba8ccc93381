package wire

import (
	"context"
	"encoding/binary"
	"io"
	"math"
	"net"
)

// IsTCPStore reports whether the program at the other end of a new connection speaks the protocol
// of PyTorch's TCPStore, as torchrun's c10d does at its endpoint. It asks with VALIDATE and
// GETNUMKEYS (docs/spec/tcpstore-wire.md 3), to which any such server says how many keys it has.
func IsTCPStore(ctx context.Context, conn net.Conn) bool {
	defer AbortOn(ctx, conn)()
	const validate, magic, numKeys = 0x00, 0x3C85F7CE, 0x07
	if _, err := conn.Write(append(binary.LittleEndian.AppendUint32([]byte{validate}, magic), numKeys)); err != nil {
		return false
	}
	var keys [8]byte
	_, err := io.ReadFull(conn, keys[:])
	return err == nil && binary.LittleEndian.Uint64(keys[:]) <= math.MaxUint32
}

// ServesHTTP reports whether the program at the other end of a new connection answers a request of HTTP.
func ServesHTTP(ctx context.Context, conn net.Conn) bool {
	defer AbortOn(ctx, conn)()
	const proto = "HTTP/"
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.0\r\n\r\n"); err != nil {
		return false
	}
	var start [len(proto)]byte
	_, err := io.ReadFull(conn, start[:])
	return err == nil && string(start[:]) == proto
}
