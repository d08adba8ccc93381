package tcpstore

import (
	"fmt"
	"net/netip"
)

// Reason is why a server closed a connection of its own accord.
type Reason int

// The reasons. Their names in Stats.Refused are those of Reason.String.
const (
	reasonDialect   Reason = iota // no torch 2.2 or newer, or no TCPStore client at all
	reasonOpcode                  // unknown opcode, or a second VALIDATE
	reasonTooLarge                // a key, value, key count or request over its limit
	reasonTruncated               // the peer ended the stream inside a message
	reasonNumber                  // ADD or BARRIER on a value which is no number
	reasonQuota                   // the engine's Limits
	reasonWaits                   // more pending waits than MaxKeys keys, MaxRequestBytes or Options.MaxWaitBytes
	reasonUnsent                  // replies over Options.MaxUnsent
	reasonSlow                    // does not read while others need Options.MaxUnsentSum
	reasonUser                    // Options.Accept does not let it in
	reasonPlain                   // no TLS, where there is a token
	reasonHandshake               // a TLS handshake that failed
	reasonAuth                    // it did not prove that it knows the token
	reasonRound                   // it knows the token and is for another round
	reasonMalformed               // our opening, but wrong
	reasonSilent                  // it did not open the connection in time
	reasonCrowd                   // too many connections that are not open yet
	reasonRecord                  // a TLS record that cannot be read
	reasonEnded                   // it ended before Options.Accept has looked whose it is
	numReasons
)

var reasonNames = [numReasons]string{
	reasonDialect:   "dialect",
	reasonOpcode:    "opcode",
	reasonTooLarge:  "too_large",
	reasonTruncated: "truncated",
	reasonNumber:    "not_a_number",
	reasonQuota:     "quota",
	reasonWaits:     "too_many_waits",
	reasonUnsent:    "unsent_replies",
	reasonSlow:      "slow_reader",
	reasonUser:      "other_user",
	reasonPlain:     "plain",
	reasonHandshake: "handshake",
	reasonAuth:      "authentication",
	reasonRound:     "other_round",
	reasonMalformed: "malformed",
	reasonSilent:    "silent",
	reasonCrowd:     "handshake_overload",
	reasonRecord:    "bad_record",
	reasonEnded:     "incomplete",
}

func (r Reason) String() string { return reasonNames[r] }

// refusal is the error that ends a session.
type refusal struct {
	reason Reason
	text   string
}

func (r *refusal) Error() string { return r.text }

func refuse(reason Reason, format string, args ...any) *refusal {
	return &refusal{reason: reason, text: fmt.Sprintf(format, args...)}
}

// refuse counts and logs why a connection is closed.
func (s *Server) refuse(why *refusal, peer netip.AddrPort) {
	s.counters.refused[why.reason].Add(1)
	if s.refusals.Note(why.reason.String(), peer.Addr().String()) {
		s.log.Warn("tcpstore: connection closed: "+why.text,
			"peer", peer.String(), "listen", s.Addr().String(), "reason", why.reason.String())
	}
}
