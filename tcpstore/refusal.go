package tcpstore

import (
	"fmt"
	"log/slog"
	"net/netip"
)

// Reason is why a server closed a connection of its own accord.
type Reason int

// The reasons. Their names in Stats.Refused are those of Reason.String.
const (
	ReasonDialect   Reason = iota // no torch 2.2 or newer, or no TCPStore client at all
	ReasonOpcode                  // unknown opcode, or a second VALIDATE
	ReasonTooLarge                // a key, value, key count or request over its limit
	ReasonTruncated               // the peer ended the stream inside a message
	ReasonNumber                  // ADD or BARRIER on a value which is no number
	ReasonQuota                   // the engine's Limits
	ReasonWaits                   // more pending waits than MaxKeys keys, MaxRequestBytes or Options.MaxWaitBytes
	ReasonUnsent                  // replies over Options.MaxUnsent
	ReasonSlow                    // does not read while others need Options.MaxUnsentSum
	ReasonUser                    // Options.Accept does not let it in
	ReasonPlain                   // no TLS, where there is a token
	ReasonHandshake               // a TLS handshake that failed
	ReasonAuth                    // it did not prove that it knows the token
	ReasonRound                   // it knows the token and is for another round
	ReasonMalformed               // our opening, but wrong
	ReasonSilent                  // it did not open the connection in time
	ReasonCrowd                   // too many connections that are not open yet
	ReasonRecord                  // a TLS record that cannot be read
	ReasonEnded                   // it ended before Options.Accept has looked whose it is
	numReasons
)

var reasonNames = [numReasons]string{
	ReasonDialect:   "dialect",
	ReasonOpcode:    "opcode",
	ReasonTooLarge:  "too_large",
	ReasonTruncated: "truncated",
	ReasonNumber:    "not_a_number",
	ReasonQuota:     "quota",
	ReasonWaits:     "too_many_waits",
	ReasonUnsent:    "unsent_replies",
	ReasonSlow:      "slow_reader",
	ReasonUser:      "other_user",
	ReasonPlain:     "plain",
	ReasonHandshake: "handshake",
	ReasonAuth:      "authentication",
	ReasonRound:     "other_round",
	ReasonMalformed: "malformed",
	ReasonSilent:    "silent",
	ReasonCrowd:     "handshake_overload",
	ReasonRecord:    "bad_record",
	ReasonEnded:     "incomplete",
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
func (s *Server) refuse(why *refusal, peer netip.AddrPort, log func(slog.Level, string, ...any)) {
	s.counters.refused[why.reason].Add(1)
	if s.refusals.Note(why.reason.String(), peer.Addr().String()) {
		log(slog.LevelWarn, "tcpstore: connection closed: "+why.text,
			"peer", peer.String(), "listen", s.Addr().String(), "reason", why.reason.String())
	}
}
