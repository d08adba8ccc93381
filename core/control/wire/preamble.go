package wire

import "rallypoint/core/secret"

// Preamble is the same for every kind of connection that a token protects.
type Preamble = secret.Preamble

// PreambleLen is the length of a preamble.
const PreambleLen = secret.PreambleLen

// Versions of the protocol. A peer answers with the highest version that both
// sides know; docs/protocol.md says what each added.
const (
	// ProtocolVersion is the version that this package speaks.
	ProtocolVersion = 1
	// OldestVersion is the oldest that it understands.
	OldestVersion = 1
)

// Negotiate returns the version to speak with a peer, false if there is none.
func Negotiate(peer Preamble) (byte, bool) {
	version := min(peer.High, ProtocolVersion)
	return version, version >= peer.Low && version >= OldestVersion
}
