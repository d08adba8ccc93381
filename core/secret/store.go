package secret

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/eventloop"
	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
)

// OpeningTimeout is how long the opening of a connection to a store may take at either end.
const OpeningTimeout = 5 * time.Second

// storeVersion is the version of the opening that both ends speak.
const storeVersion = 1

const maxGeneration = 128

// Causes of a connection that AcceptStore does not let in.
var (
	// ErrHandshake tells of a TLS handshake that failed.
	ErrHandshake = errors.New("the TLS handshake failed")
	// ErrUnproven tells of a peer that has not proven that it knows the token.
	ErrUnproven = errors.New("authentication failed")
	// ErrOtherRound tells of one that has, and names another round.
	ErrOtherRound = errors.New("the connection is for another round")
)

// StoreName tells one round store from all others. It is no secret. The zero value names none.
type StoreName struct {
	Run, Generation string
	Round           uint64
}

// String is for logs and errors; a name may come from a peer.
func (s StoreName) String() string {
	if s == (StoreName{}) {
		return "no round"
	}
	return fmt.Sprintf("round %d of run %s (generation %s)", s.Round,
		strconv.Quote(printable.Text(s.Run)), printable.Text(s.Generation))
}

// pack encodes a name as it is sent, and as proofs cover it.
func (s StoreName) pack() []byte {
	return pack.Append(nil, func(p *pack.Packer) {
		p.List(3)
		p.Text(s.Run)
		p.Text(s.Generation)
		p.Uint(s.Round)
	})
}

func parseStoreName(b []byte) (StoreName, error) {
	u := pack.NewUnpacker(b)
	defer u.Release()
	if u.Open() < 3 {
		u.Fail("no name of a round")
	}
	n := StoreName{Run: u.Text(rendezvous.MaxNameLen), Generation: u.Text(maxGeneration), Round: u.Uint()}
	return n, u.Err()
}

// DialStore opens a connection to a round store, or to a port next to it: TLS, then a proof from
// each end that it knows the token. All bytes that the result returns come from the named store.
// An error of the store is a *rendezvous.Error: CodeAuth, or CodeRoundOver if it serves another
// round. The result is over eventloop.Records. DialStore gives up when ctx ends, or after
// OpeningTimeout, with an error that wraps the cause. The caller closes the connection.
func DialStore(ctx context.Context, conn net.Conn, token *Token, name StoreName, purpose Purpose) (*tls.Conn, error) {
	if len(name.Run) > rendezvous.MaxNameLen || len(name.Generation) > maxGeneration {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "the name of %s is too long", name)
	}
	began := time.Now()
	secured, err := within(ctx, conn, func() (*tls.Conn, error) { return dialStore(conn, token, name, purpose) })
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("the store at %s did not open the connection within %s: %w", conn.RemoteAddr(), time.Since(began).Round(time.Millisecond), err)
	}
	return secured, err
}

// within runs an opening until the end of ctx, at most for OpeningTimeout.
func within(ctx context.Context, conn net.Conn, open func() (*tls.Conn, error)) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, OpeningTimeout)
	defer cancel()
	release := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	secured, err := open()
	if !release() && err == nil { // the deadline is set, or is going to be
		err = os.ErrDeadlineExceeded
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && errors.Is(err, os.ErrDeadlineExceeded) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return nil, err
	}
	return secured, nil
}

func dialStore(conn net.Conn, token *Token, name StoreName, purpose Purpose) (*tls.Conn, error) {
	addr := conn.RemoteAddr()
	secured, err := openTLS(eventloop.NewRecords(conn), storeTLS)
	if err != nil {
		return nil, ExplainTLS(err, "round store", addr, token)
	}
	exporter, err := Exporter(secured)
	if err != nil {
		return nil, err
	}
	keys := token.Keys()
	ours := Preamble{High: storeVersion, Low: storeVersion, Token: true}
	t := Transcript{Purpose: purpose, Said: ours.Bytes(), Exporter: exporter, Name: name.pack()}
	if _, err := secured.Write(appendFrame(ours.Bytes(), Proof{t.Prove(OfNode, keys), purpose, t.Name}.Pack)); err != nil {
		return nil, err
	}
	theirs, err := readPreamble(secured)
	if err != nil {
		return nil, fmt.Errorf("what listens at %s is no Rallypoint round store, or it is ending: %w", addr, err)
	}
	t.Said = append(t.Said, theirs.Bytes()...)
	proof, refused, err := readFrame(secured)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the store at %s did not answer the proof: %w", addr, noEOF(err))
	case refused: // its reason is not believed: it has proven nothing
		return nil, rendezvous.Errorf(rendezvous.CodeAuth,
			"authentication failed: the store at %s does not know the token in %s: give all nodes the same token", addr, token.Describe())
	}
	t.Name = proof.Name
	if proof.Purpose != purpose || t.Check(OfServer, proof.MACs, keys) == nil {
		return nil, rendezvous.Errorf(rendezvous.CodeAuth,
			"authentication failed: what listens at %s does not know the token in %s: it is not the store that it should be", addr, token.Describe())
	}
	serves, err := parseStoreName(proof.Name)
	if err != nil {
		return nil, fmt.Errorf("the store at %s did not say what it serves: %w", addr, err)
	}
	if serves != name {
		return nil, rendezvous.Errorf(rendezvous.CodeRoundOver, "the store at %s serves %s, not %s", addr, serves, name)
	}
	return secured, nil
}

// AcceptStore is the other end of DialStore, for the purposes that may accepts. name tells an
// authenticated peer what is served. Any other peer only gets "authentication failed". The error
// wraps one of ErrHandshake, ErrUnproven, ErrOtherRound, ErrMalformed, or is the connection's. It
// names the token's file and fingerprint, and is for this side's log.
func AcceptStore(ctx context.Context, conn net.Conn, config *tls.Config, token *Token, may func(Purpose) bool, name func() StoreName) (*tls.Conn, error) {
	return within(ctx, conn, func() (*tls.Conn, error) { return acceptStore(conn, config, token, may, name) })
}

func acceptStore(conn net.Conn, config *tls.Config, token *Token, may func(Purpose) bool, name func() StoreName) (*tls.Conn, error) {
	secured := tls.Server(conn, config)
	if err := secured.Handshake(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHandshake, noEOF(err))
	}
	exporter, err := Exporter(secured)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHandshake, err)
	}
	theirs, err := readPreamble(secured)
	if err != nil {
		return nil, err
	}
	if theirs.High < storeVersion || theirs.Low > storeVersion {
		return nil, fmt.Errorf("%w: it speaks version %d to %d, this store %d", ErrForeign, theirs.Low, theirs.High, storeVersion)
	}
	proof, refused, err := readFrame(secured)
	if err != nil || refused {
		return nil, cmp.Or(err, fmt.Errorf("%w: a refusal in place of a proof", ErrMalformed))
	}
	ours := Preamble{High: storeVersion, Low: storeVersion, Token: true}
	purpose := proof.Purpose
	t := Transcript{Purpose: purpose, Said: theirs.Bytes(), Exporter: exporter, Name: proof.Name}
	var known []byte
	why := ""
	if !may(purpose) {
		why = fmt.Sprintf("its proof is for the purpose %d, which nothing here serves", purpose)
	} else if known = t.Check(OfNode, proof.MACs, token.Keys()); known == nil {
		why = "it does not know the token in " + token.Describe()
	}
	if known == nil {
		_, err := secured.Write(appendFrame(ours.Bytes(), packRefusal))
		return nil, errors.Join(fmt.Errorf("%w: %s", ErrUnproven, why), err)
	}
	wants, err := parseStoreName(proof.Name)
	if err != nil {
		return nil, err
	}
	serves := name()
	t.Said, t.Name = append(t.Said, ours.Bytes()...), serves.pack()
	answer := Proof{t.Prove(OfServer, [][]byte{known}), purpose, t.Name}
	if _, err := secured.Write(appendFrame(ours.Bytes(), answer.Pack)); err != nil {
		return nil, err
	}
	if serves == (StoreName{}) || serves != wants {
		return nil, fmt.Errorf("%w: it wants %s, this store serves %s", ErrOtherRound, wants, serves)
	}
	return secured, nil
}

func readPreamble(r io.Reader) (Preamble, error) {
	var b [PreambleLen]byte
	if n, err := io.ReadFull(r, b[:]); err != nil {
		return Preamble{}, fmt.Errorf("it ended after %d bytes: %w", n, noEOF(err))
	}
	return ParsePreamble(b[:])
}
