package control

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/secret"
	"rallypoint/internal/printable"
)

// Limits of TLS handshakes. A peer that has proven nothing yet has made this process
// calculate, at most so much at one time.
const (
	// handshakeTimeout is how long a connection that speaks TLS may take to prove itself.
	handshakeTimeout = 5 * time.Second
	// maxUnproven limits the connections that have begun a TLS handshake and have not
	// authenticated. Any more are closed, and so is another one of a source that already has most
	// of them.
	maxUnproven = 256
	// recordHead is the length of a TLS record's header, which ends with the record's size.
	recordHead = 5
)

var (
	errTLS        = errors.New("it speaks TLS, as nodes with a token do, but this control plane has no token")
	errHandshake  = errors.New("the TLS handshake failed")
	errHandshakes = errors.New("too many other TLS connections have proven nothing yet, all in all or of its machine")
	errUnproven   = errors.New("it did not prove that it knows the token within " + handshakeTimeout.String())
)

// handshakes limits a server's cost of TLS handshakes.
type handshakes struct {
	config   *tls.Config // nil: there is no certificate
	failure  error       // why
	slots    secret.Slots
	unproven *secret.Places
}

func newHandshakes() *handshakes {
	h := &handshakes{slots: secret.NewSlots(), unproven: secret.NewPlaces(maxUnproven)}
	h.config, h.failure = secret.ServerTLS()
	return h
}

// secure makes the TLS handshake if the peer's first byte begins one and there is a token. Later
// reads and writes go through TLS. It returns the first byte of the connection's content.
func (sc *serverConn) secure(first byte) (byte, error) {
	if first != wire.TLSByte || sc.server.handshakes == nil {
		return first, nil
	}
	if err := sc.makeHandshake(sc.server.handshakes); err != nil {
		return 0, err
	}
	next, err := sc.frames.In.Peek(1)
	if err != nil {
		return 0, fmt.Errorf("%w: it said nothing after it: %w", errHandshake, wire.NoEOF(err))
	}
	return next[0], nil
}

func (sc *serverConn) makeHandshake(h *handshakes) error {
	if h.config == nil {
		return h.failure
	}
	sc.unproven = sc.server.clock.AfterFunc(handshakeTimeout, func() { sc.out.Cut(errUnproven) })
	if err := sc.awaitHello(); err != nil {
		return fmt.Errorf("%w: %w", errHandshake, wire.NoEOF(err))
	}
	if sc.counted = h.unproven.Take(sc.conn.RemoteAddr()); !sc.counted {
		return errHandshakes
	}
	said, _ := sc.frames.In.Peek(sc.frames.In.Buffered())
	below := h.slots.Begin(sc.conn.NetConn(), bytes.Clone(said))
	conn := tls.Server(below, h.config)
	err := conn.Handshake()
	below.Finish()
	if err != nil {
		return fmt.Errorf("%w: %w", errHandshake, wire.NoEOF(err))
	}
	if err := sc.conn.Secure(conn); err != nil {
		return fmt.Errorf("%w: %w", errHandshake, err)
	}
	sc.frames.In.Reset(sc)
	return nil
}

// awaitHello waits until the peer's first record has arrived, as far as there is room: a
// connection that sends it byte by byte costs no calculation.
func (sc *serverConn) awaitHello() error {
	head, err := sc.frames.In.Peek(recordHead)
	if err != nil {
		return err
	}
	size := recordHead + int(binary.BigEndian.Uint16(head[recordHead-2:]))
	_, err = sc.frames.In.Peek(min(size, sc.frames.In.Size()))
	return err
}

// endProof notes that the peer has proven itself, or is gone.
func (sc *serverConn) endProof() {
	if sc.unproven != nil {
		sc.unproven.Stop()
		sc.unproven = nil
	}
	if sc.counted {
		sc.counted = false
		sc.server.handshakes.unproven.Give(sc.conn.RemoteAddr())
	}
}

// refuseTLS answers a TLS hello where there is no token in plain, which the peer's TLS
// recognises: neither side has said anything else.
func (sc *serverConn) refuseTLS() error {
	if sc.conn.Exporter() != nil {
		return fmt.Errorf("%w: %w: TLS within TLS", wire.ErrMalformed, secret.ErrForeign)
	}
	sc.out.Hold(wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes())
	sc.out.Send(wire.Refuse{Err: wire.ErrAuth})
	sc.drain()
	return fmt.Errorf("%w: %w", errRefused, errTLS)
}

// authenticate checks the peer's proof that it knows the token, and proves it to the peer.
// A peer that cannot learns nothing else.
func (sc *serverConn) authenticate(theirs, ours wire.Preamble) error {
	denied := func(why string) error {
		sc.out.Send(wire.Refuse{Err: wire.ErrAuth})
		sc.drain()
		return fmt.Errorf("%w: %w: %s", errRefused, wire.ErrAuth, why)
	}
	token := sc.server.cfg.Token
	switch {
	case token == nil:
		return denied("it has a token, but this control plane has none")
	case !theirs.Token:
		return denied("it has no token, but this control plane has one: " + token.Describe())
	case sc.conn.Exporter() == nil:
		return denied("it has a token, but does not speak TLS: it is of an older release")
	}
	f, err := sc.frames.NextFrame(wire.MaxProofFrame)
	if err != nil {
		return wire.NoEOF(err)
	}
	proof, ok := f.(wire.Proof)
	if !ok {
		return fmt.Errorf("%w: a frame %q before the proof", wire.ErrMalformed, wire.NameOf(f))
	}
	sc.server.metrics.FramesIn.Count(proof)
	t := secret.Transcript{Purpose: secret.PurposeControl, Said: theirs.Bytes(), Exporter: sc.conn.Exporter()}
	if proof.Purpose != t.Purpose {
		return denied(fmt.Sprintf("its proof is for the purpose %d, not for a control plane", proof.Purpose))
	}
	keys := slices.DeleteFunc(slices.Clone(token.Keys()), func(key []byte) bool { return secret.RunOf(key) != "" })
	if len(proof.Run) > 0 {
		t.Name, sc.only = proof.Run, string(proof.Run)
		if hosted := sc.server.cfg.RunID; hosted != "" && hosted != sc.only {
			return denied(fmt.Sprintf("its token opens run %q, which this control plane does not serve", printable.Text(sc.only)))
		}
		keys = token.KeysFor(sc.only)
	}
	known := t.Check(secret.OfNode, proof.MACs, keys)
	if known == nil {
		return denied("it does not know the token in " + token.Describe())
	}
	sc.endProof()
	sc.server.metrics.proven.Add(1)
	sc.key = secret.Fingerprint(known)
	t.Said = append(t.Said, ours.Bytes()...)
	sc.out.Send(wire.Proof{MACs: t.Prove(secret.OfServer, [][]byte{known}), Purpose: t.Purpose})
	return nil
}

// fingerprints returns those of the server's token; none without a token.
func (s *Server) fingerprints() []string {
	if s.cfg.Token == nil {
		return []string{}
	}
	return s.cfg.Token.Fingerprints()
}
