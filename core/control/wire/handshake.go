package wire

import (
	"errors"
	"fmt"
	"io"
	"net"

	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
)

// Proof holds a MAC for each token that its sender knows, the server's only the one for the
// token by which the node was let in, and what the connection is for.
type Proof struct {
	MACs    [][]byte
	Purpose secret.Purpose
	Run     []byte // the one run that the token opens; nil: all
}

func (pr Proof) pack(p *packer) {
	secret.Proof{MACs: pr.MACs, Purpose: pr.Purpose, Name: append([]byte{}, pr.Run...)}.Pack(p)
}

func readProof(u *unpacker) Proof {
	f := secret.ReadProof(u)
	run := u.Bytes(MaxName)
	if len(run) == 0 {
		run = nil
	}
	return Proof{MACs: f.MACs, Purpose: f.Purpose, Run: run}
}

// ErrAuth is all that a server tells a peer that has not proven that it knows the
// token.
var ErrAuth = secret.ErrDenied

// errNotConn tells that TLS cannot take over a connection, so that a proof would be sent in
// plain.
var errNotConn = errors.New("a proof needs a connection that TLS can take over")

// ClientHandshake is the opening side of a connection: a node's or an administrator's.
type ClientHandshake struct {
	Token *secret.Token // nil: none
	Addr  net.Addr      // the control plane's
}

// Run sends the preamble and first, a whole frame or nothing, and returns the server's
// preamble. frames read from conn and have read nothing yet. With a token conn is a *Conn,
// which goes through TLS from then on, and both sides prove that they know the token; first
// is sent once the server has, so that nobody in its place reads it. A refusal by the server is a
// *rendezvous.Error. Run does not read the answer to first; without a token that may be a
// failed authentication, which Explain explains.
func (ch ClientHandshake) Run(conn io.Writer, frames *FrameReader, first []byte) (Preamble, error) {
	ours := Preamble{High: ProtocolVersion, Low: OldestVersion, Token: ch.Token != nil}
	if ch.Token == nil {
		if _, err := conn.Write(append(ours.Bytes(), first...)); err != nil {
			return Preamble{}, err
		}
		return ch.readPreamble(frames)
	}
	c, ok := conn.(*Conn)
	if !ok {
		return Preamble{}, errNotConn
	}
	if c.Exporter() == nil {
		if err := c.Open(ch.Token); err != nil {
			return Preamble{}, err
		}
	}
	tokens := ch.Token.Keys()
	t := secret.Transcript{Purpose: secret.PurposeControl, Said: ours.Bytes(), Exporter: c.Exporter()}
	if run := ch.Token.Run(); run != "" {
		t.Name = []byte(run)
	}
	opening := AppendFrame(ours.Bytes(), Proof{MACs: t.Prove(secret.OfNode, tokens), Purpose: t.Purpose, Run: t.Name})
	if _, err := conn.Write(opening); err != nil {
		return Preamble{}, err
	}
	theirs, err := ch.readPreamble(frames)
	if err != nil {
		return Preamble{}, err
	}
	t.Said = append(t.Said, theirs.Bytes()...)
	f, err := frames.NextFrame(MaxHelloFrame)
	if err != nil {
		return Preamble{}, fmt.Errorf("%s did not answer the proof: %w", ch.Addr, NoEOF(err))
	}
	switch f := f.(type) {
	case Proof:
		if f.Purpose == t.Purpose && t.Check(secret.OfServer, f.MACs, tokens) != nil {
			if len(first) > 0 {
				_, err = conn.Write(first)
			}
			return theirs, err
		}
		return Preamble{}, rendezvous.Errorf(rendezvous.CodeAuth,
			"authentication failed: what listens at %s does not know the token in %s: it is not the control plane that it should be", ch.Addr, ch.Token.Describe())
	case Refuse:
		return Preamble{}, ch.unproven(theirs)
	}
	return Preamble{}, fmt.Errorf("%w: %s answered a proof with a frame %q", ErrMalformed, ch.Addr, NameOf(f))
}

func (ch ClientHandshake) readPreamble(frames *FrameReader) (Preamble, error) {
	var answer [PreambleLen]byte
	if n, err := io.ReadFull(frames.In, answer[:]); err != nil {
		return Preamble{}, fmt.Errorf("what listens at %s closed the connection after %d bytes: it is no Rallypoint control plane, or it is ending: %w", ch.Addr, n, NoEOF(err))
	}
	theirs, err := secret.ParsePreamble(answer[:])
	if err != nil {
		return Preamble{}, fmt.Errorf("what listens at %s is no Rallypoint control plane: %w (%q)", ch.Addr, err, answer[:])
	}
	return theirs, nil
}

// unproven is the error for a refusal whose sender has not authenticated. Its reason does not
// count, or any program in place of a control plane could end a node with it.
func (ch ClientHandshake) unproven(theirs Preamble) *rendezvous.Error {
	if _, ok := Negotiate(theirs); ok {
		return ch.Explain(ErrAuth, theirs)
	}
	return rendezvous.Errorf(rendezvous.CodeAuth,
		"%s: what listens at %s speaks protocol version %d, this node %d to %d, and has not proven that it knows the token in %s: use the same release everywhere",
		ErrAuth.Text, ch.Addr, theirs.High, OldestVersion, ProtocolVersion, ch.Token.Describe())
}

// Explain adds to a refusal what to do about it: the server itself says little to a
// peer that has proven nothing.
func (ch ClientHandshake) Explain(refusal *rendezvous.Error, theirs Preamble) *rendezvous.Error {
	switch {
	case refusal == nil:
		return rendezvous.Errorf(rendezvous.CodeState, "the control plane at %s refused this node and did not say why", ch.Addr)
	case refusal.Code != rendezvous.CodeAuth:
		return refusal
	}
	if _, ok := Negotiate(theirs); !ok {
		return rendezvous.Errorf(rendezvous.CodeState, "the control plane at %s speaks protocol version %d, this node %d to %d: use the same release everywhere",
			ch.Addr, theirs.High, OldestVersion, ProtocolVersion)
	}
	if ch.Token == nil {
		return rendezvous.Errorf(rendezvous.CodeAuth,
			"%s: the control plane at %s requires a token: give its file by token_file, --token-file or RALLYPOINT_TOKEN_FILE", refusal.Text, ch.Addr)
	}
	return rendezvous.Errorf(rendezvous.CodeAuth, "%s: the control plane at %s does not know the token in %s: give all nodes the control plane's token",
		refusal.Text, ch.Addr, ch.Token.Describe())
}
