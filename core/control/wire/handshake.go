package wire

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net"

	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
)

// nonceLen is the length of what each side draws for one connection.
const nonceLen = 32

// Challenge opens the proof: what its sender drew at random for this connection.
type Challenge struct{ Nonce []byte }

// Proof holds a MAC for each token that its sender knows, the server's only the
// one for the token by which the node was let in.
type Proof struct{ MACs [][]byte }

func (f Challenge) pack(p *packer) {
	head(p, KindChallenge, 1)
	p.Bytes(f.Nonce)
}

func readChallenge(u *unpacker) Challenge {
	f := Challenge{Nonce: u.Bytes(nonceLen)}
	if len(f.Nonce) != nonceLen {
		u.Fail("a nonce of %d bytes, want %d", len(f.Nonce), nonceLen)
	}
	return f
}

func (f Proof) pack(p *packer) {
	head(p, KindProof, 1)
	p.Values(f.MACs)
}

func readProof(u *unpacker) Proof { return Proof{MACs: u.Values(secret.MaxTokens, sha256.Size)} }

func NewNonce() []byte {
	b := make([]byte, nonceLen)
	_, _ = rand.Read(b) // never fails
	return b
}

// Transcript is what both sides have said on a connection before the proofs. A proof
// is a MAC over all of it: no part of it can be changed on the way, and no proof fits
// another connection.
type Transcript struct {
	Node, Server           Preamble
	NodeNonce, ServerNonce []byte
}

// The two directions differ, so that no proof can be reflected to its maker.
const (
	ProofOfNode   = "rallypoint 1: the node or administrator knows the token\x00"
	ProofOfServer = "rallypoint 1: the control plane knows the token\x00"
)

// mac returns the proof that its maker knows a token.
func (t Transcript) mac(direction string, token []byte) []byte {
	h := hmac.New(sha256.New, token)
	_, _ = io.WriteString(h, direction)
	_, _ = h.Write(t.Node.Bytes())
	_, _ = h.Write(t.Server.Bytes())
	_, _ = h.Write(t.NodeNonce)
	_, _ = h.Write(t.ServerNonce)
	return h.Sum(nil)
}

// Prove makes a proof for each token.
func (t Transcript) Prove(direction string, tokens [][]byte) Proof {
	var f Proof
	for _, token := range tokens {
		f.MACs = append(f.MACs, t.mac(direction, token))
	}
	return f
}

// Verify returns the token that a proof is made with, nil if it is none of tokens. The
// time it takes depends neither on how much of a MAC is right nor on which token matches.
func (t Transcript) Verify(direction string, f Proof, tokens [][]byte) []byte {
	var known []byte
	for _, token := range tokens {
		want := t.mac(direction, token)
		for _, got := range f.MACs {
			if hmac.Equal(got, want) {
				known = token
			}
		}
	}
	return known
}

// ErrAuth is all that a server tells a peer that has not proven that it knows the
// token.
var ErrAuth = rendezvous.Errorf(rendezvous.CodeAuth, "authentication failed")

// ClientHandshake is the opening side of a connection: a node's or an administrator's.
type ClientHandshake struct {
	Token *secret.Token // nil: none
	Addr  net.Addr      // the control plane's
}

// Run sends the preamble and first, a whole frame or nothing, and returns the
// server's preamble. With a token both sides first prove that they know it. A refusal
// by the server is a *rendezvous.Error. Run does not read the answer to first; without
// a token that may be a failed authentication, which Explain explains.
func (h ClientHandshake) Run(conn io.Writer, frames *FrameReader, first []byte) (Preamble, error) {
	ours := Preamble{High: ProtocolVersion, Low: OldestVersion, Token: h.Token != nil}
	if h.Token == nil {
		if _, err := conn.Write(append(ours.Bytes(), first...)); err != nil {
			return Preamble{}, err
		}
		return h.readPreamble(frames)
	}
	o := Transcript{Node: ours, NodeNonce: NewNonce()}
	if _, err := conn.Write(AppendFrame(ours.Bytes(), Challenge{o.NodeNonce})); err != nil {
		return Preamble{}, err
	}
	var err error
	if o.Server, err = h.readPreamble(frames); err != nil {
		return Preamble{}, err
	}
	if !o.Server.Token {
		return Preamble{}, rendezvous.Errorf(rendezvous.CodeAuth,
			"authentication failed: the control plane at %s has no token, but this process was given one (%s): start the control plane with it, too, or give none here",
			h.Addr, h.Token.Path())
	}
	f, err := frames.NextFrame(MaxHelloFrame)
	if err != nil {
		return Preamble{}, fmt.Errorf("%s did not answer the challenge: %w", h.Addr, NoEOF(err))
	}
	switch f := f.(type) {
	case Challenge:
		o.ServerNonce = f.Nonce
	case Refuse:
		return Preamble{}, h.Explain(f.Err, o.Server)
	default:
		return Preamble{}, fmt.Errorf("%w: %s answered a challenge with a frame %q", ErrMalformed, h.Addr, NameOf(f))
	}
	tokens := h.Token.Keys()
	if _, err := conn.Write(append(AppendFrame(nil, o.Prove(ProofOfNode, tokens)), first...)); err != nil {
		return Preamble{}, err
	}
	if f, err = frames.NextFrame(MaxHelloFrame); err != nil {
		return Preamble{}, fmt.Errorf("%s did not answer the proof: %w", h.Addr, NoEOF(err))
	}
	switch f := f.(type) {
	case Proof:
		if o.Verify(ProofOfServer, f, tokens) != nil {
			return o.Server, nil
		}
		return Preamble{}, rendezvous.Errorf(rendezvous.CodeAuth,
			"authentication failed: what listens at %s does not know the token in %s: it is not the control plane that it should be", h.Addr, h.Token.Path())
	case Refuse:
		return Preamble{}, h.Explain(f.Err, o.Server)
	}
	return Preamble{}, fmt.Errorf("%w: %s answered a proof with a frame %q", ErrMalformed, h.Addr, NameOf(f))
}

func (h ClientHandshake) readPreamble(frames *FrameReader) (Preamble, error) {
	var answer [PreambleLen]byte
	if n, err := io.ReadFull(frames.In, answer[:]); err != nil {
		return Preamble{}, fmt.Errorf("%s closed the connection after %d bytes: it is no Rallypoint control plane, or it is ending: %w", h.Addr, n, NoEOF(err))
	}
	theirs, err := ParsePreamble(answer[:])
	if err != nil {
		return Preamble{}, fmt.Errorf("what listens at %s is no Rallypoint control plane: %w", h.Addr, err)
	}
	return theirs, nil
}

// Explain adds to a refusal what to do about it: the server itself says little to a
// peer that has proven nothing.
func (h ClientHandshake) Explain(refusal *rendezvous.Error, theirs Preamble) *rendezvous.Error {
	switch {
	case refusal == nil:
		return rendezvous.Errorf(rendezvous.CodeState, "the control plane at %s refused this node and did not say why", h.Addr)
	case refusal.Code != rendezvous.CodeAuth:
		return refusal
	}
	if _, ok := Negotiate(theirs); !ok {
		return rendezvous.Errorf(rendezvous.CodeState, "the control plane at %s speaks protocol version %d, this node %d to %d: use the same release everywhere",
			h.Addr, theirs.High, OldestVersion, ProtocolVersion)
	}
	if h.Token == nil {
		return rendezvous.Errorf(rendezvous.CodeAuth,
			"%s: the control plane at %s wants a token: give its file by token_file, --token-file or RALLYPOINT_TOKEN_FILE", refusal.Text, h.Addr)
	}
	return rendezvous.Errorf(rendezvous.CodeAuth, "%s: the control plane at %s does not know the token in %s: give all nodes the control plane's token",
		refusal.Text, h.Addr, h.Token.Path())
}
