package secret

import (
	"encoding/hex"
	"errors"
	"fmt"
)

// ErrForeign tells that the other side does not speak our protocol.
var ErrForeign = errors.New("not our protocol")

// PreambleLen is the length of the first message of either side: the magic, the
// highest and the lowest version it understands, flags, a zero byte.
const PreambleLen = 8

// Magic opens each side's stream. Its first byte is none that TCPStore (0x00),
// TLS (0x16) or HTTP (a letter) begin with, and no UTF-8 text has it there.
var Magic = [4]byte{0xd5, 'R', 'P', 'T'}

// Preamble announces a peer's versions. In the server's answer, high is the chosen one. With
// Token the peer demands a proof that the other knows the token, and offers its own.
type Preamble struct {
	High, Low byte
	Token     bool
}

const flagToken = 1

// Bytes returns the encoded preamble.
func (p Preamble) Bytes() []byte {
	flags := byte(0)
	if p.Token {
		flags |= flagToken
	}
	return []byte{Magic[0], Magic[1], Magic[2], Magic[3], p.High, p.Low, flags, 0}
}

// ParsePreamble decodes a preamble. The error is ErrForeign if the bytes begin differently.
func ParsePreamble(b []byte) (Preamble, error) {
	if len(b) < PreambleLen || [4]byte(b[:4]) != Magic {
		return Preamble{}, fmt.Errorf("%w: it begins with %s", ErrForeign, HexStart(b))
	}
	return Preamble{High: b[4], Low: b[5], Token: b[6]&flagToken != 0}, nil
}

// HexStart returns the first bytes of a message in hexadecimal, for the log.
func HexStart(b []byte) string {
	if len(b) > 16 {
		return hex.EncodeToString(b[:16]) + "…"
	}
	return hex.EncodeToString(b)
}
