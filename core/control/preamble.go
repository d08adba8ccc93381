package control

import (
	"encoding/hex"
	"errors"
	"fmt"
)

// errForeign tells that the other side does not speak this protocol.
var errForeign = errors.New("not our protocol")

// Versions of the protocol. A peer answers with the highest version that both
// sides know; docs/protocol.md says what each added.
const (
	// ProtocolVersion is the version that this package speaks.
	ProtocolVersion = 1
	// oldestVersion is the oldest that it understands.
	oldestVersion = 1
)

// preambleLen is the length of the first message of either side: the magic, the
// highest and the lowest version it understands, flags, a zero byte.
const preambleLen = 8

// magic opens each side's stream. Its first byte is none that TCPStore (0x00),
// TLS (0x16) or HTTP (a letter) begin with, and no UTF-8 text has it there.
var magic = [4]byte{0xd5, 'R', 'P', 'T'}

// preamble is what a peer says of its versions; the server's answer carries the
// chosen one as high. With token the peer wants a proof that the other knows the
// token, and offers its own.
type preamble struct {
	high, low byte
	token     bool
}

// flagToken is the bit of preamble.token in the flags.
const flagToken = 1

func (p preamble) bytes() []byte {
	flags := byte(0)
	if p.token {
		flags |= flagToken
	}
	return []byte{magic[0], magic[1], magic[2], magic[3], p.high, p.low, flags, 0}
}

func parsePreamble(b []byte) (preamble, error) {
	if len(b) < preambleLen || [4]byte(b[:4]) != magic {
		return preamble{}, fmt.Errorf("%w: it begins with %s", errForeign, hexStart(b))
	}
	return preamble{high: b[4], low: b[5], token: b[6]&flagToken != 0}, nil
}

// negotiate returns the version to speak with a peer, false if there is none.
func negotiate(peer preamble) (byte, bool) {
	version := min(peer.high, ProtocolVersion)
	return version, version >= peer.low && version >= oldestVersion
}

// hexStart shows how a message begins, for the log.
func hexStart(b []byte) string {
	if len(b) > 16 {
		return hex.EncodeToString(b[:16]) + "…"
	}
	return hex.EncodeToString(b)
}
