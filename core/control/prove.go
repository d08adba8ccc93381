package control

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

// challenge opens the proof: what its sender drew at random for this connection.
type challenge struct{ Nonce []byte }

// proof holds a MAC for each token that its sender knows, the server's only the
// one for the token by which the node was let in.
type proof struct{ MACs [][]byte }

func (f challenge) pack(p *packer) {
	head(p, kindChallenge, 1)
	p.Bytes(f.Nonce)
}

func readChallenge(u *unpacker) challenge {
	f := challenge{Nonce: u.Bytes(nonceLen)}
	if len(f.Nonce) != nonceLen {
		u.Fail("a nonce of %d bytes, want %d", len(f.Nonce), nonceLen)
	}
	return f
}

func (f proof) pack(p *packer) {
	head(p, kindProof, 1)
	p.Values(f.MACs)
}

func readProof(u *unpacker) proof { return proof{MACs: u.Values(secret.MaxTokens, sha256.Size)} }

func newNonce() []byte {
	b := make([]byte, nonceLen)
	_, _ = rand.Read(b) // never fails
	return b
}

// opening is what both sides have said of a connection before the proofs, which
// are over all of it: nothing of it can be changed on the way, and nothing can be
// used for another connection.
type opening struct {
	node, server           preamble
	nodeNonce, serverNonce []byte
}

// The two directions differ, so that nobody can be answered with its own proof.
const (
	proofOfNode   = "rallypoint 1: the node or administrator knows the token\x00"
	proofOfServer = "rallypoint 1: the control plane knows the token\x00"
)

// mac proves that its maker knows a token.
func (o opening) mac(direction string, token []byte) []byte {
	h := hmac.New(sha256.New, token)
	_, _ = io.WriteString(h, direction)
	_, _ = h.Write(o.node.bytes())
	_, _ = h.Write(o.server.bytes())
	_, _ = h.Write(o.nodeNonce)
	_, _ = h.Write(o.serverNonce)
	return h.Sum(nil)
}

// prove makes a proof for each token.
func (o opening) prove(direction string, tokens [][]byte) proof {
	var f proof
	for _, token := range tokens {
		f.MACs = append(f.MACs, o.mac(direction, token))
	}
	return f
}

// check returns the token that a proof is made with, nil if there is none. The
// time it takes does not depend on how much of a MAC is right or on which token
// it was.
func (o opening) check(direction string, f proof, tokens [][]byte) []byte {
	var known []byte
	for _, token := range tokens {
		want := o.mac(direction, token)
		for _, got := range f.MACs {
			if hmac.Equal(got, want) {
				known = token
			}
		}
	}
	return known
}

// errAuth is all that a server tells of itself to who cannot prove that it knows
// the token.
var errAuth = rendezvous.Errorf(rendezvous.CodeAuth, "authentication failed")

// greeter opens connections to a control plane.
type greeter struct {
	token *secret.Token // nil: none
	to    net.Addr
}

// open sends the preamble and first, a whole frame or nothing, and returns the
// server's preamble. With a token both sides prove before that they know it. An
// answer that refuses is a *rendezvous.Error. Where there is no token, what first
// asks for has not been answered yet, and may turn out to be an authentication
// that failed: see explain.
func (g greeter) open(conn io.Writer, frames *frameReader, first []byte) (preamble, error) {
	ours := preamble{high: ProtocolVersion, low: oldestVersion, token: g.token != nil}
	if g.token == nil {
		if _, err := conn.Write(append(ours.bytes(), first...)); err != nil {
			return preamble{}, err
		}
		return g.readPreamble(frames)
	}
	o := opening{node: ours, nodeNonce: newNonce()}
	if _, err := conn.Write(appendFrame(ours.bytes(), challenge{o.nodeNonce})); err != nil {
		return preamble{}, err
	}
	var err error
	if o.server, err = g.readPreamble(frames); err != nil {
		return preamble{}, err
	}
	if !o.server.token {
		return preamble{}, rendezvous.Errorf(rendezvous.CodeAuth,
			"authentication failed: the control plane at %s has no token, but this process was given one (%s): start the control plane with it, too, or give none here",
			g.to, g.token.Path())
	}
	f, err := frames.nextFrame(maxHelloFrame)
	if err != nil {
		return preamble{}, fmt.Errorf("%s did not answer the challenge: %w", g.to, noEOF(err))
	}
	switch f := f.(type) {
	case challenge:
		o.serverNonce = f.Nonce
	case refuse:
		return preamble{}, g.explain(f.Err, o.server)
	default:
		return preamble{}, fmt.Errorf("%w: %s answered a challenge with a %T", errMalformed, g.to, f)
	}
	tokens := g.token.Keys()
	if _, err := conn.Write(append(appendFrame(nil, o.prove(proofOfNode, tokens)), first...)); err != nil {
		return preamble{}, err
	}
	if f, err = frames.nextFrame(maxHelloFrame); err != nil {
		return preamble{}, fmt.Errorf("%s did not answer the proof: %w", g.to, noEOF(err))
	}
	switch f := f.(type) {
	case proof:
		if o.check(proofOfServer, f, tokens) != nil {
			return o.server, nil
		}
		return preamble{}, rendezvous.Errorf(rendezvous.CodeAuth,
			"authentication failed: what listens at %s does not know the token in %s: it is not the control plane that it should be", g.to, g.token.Path())
	case refuse:
		return preamble{}, g.explain(f.Err, o.server)
	}
	return preamble{}, fmt.Errorf("%w: %s answered a proof with a %T", errMalformed, g.to, f)
}

func (g greeter) readPreamble(frames *frameReader) (preamble, error) {
	var answer [preambleLen]byte
	if n, err := io.ReadFull(frames.in, answer[:]); err != nil {
		return preamble{}, fmt.Errorf("%s closed the connection after %d bytes: it is no Rallypoint control plane, or it is ending: %w", g.to, n, noEOF(err))
	}
	theirs, err := parsePreamble(answer[:])
	if err != nil {
		return preamble{}, fmt.Errorf("what listens at %s is no Rallypoint control plane: %w", g.to, err)
	}
	return theirs, nil
}

// explain says what to do about a refusal, which tells little if it is for want
// of a proof.
func (g greeter) explain(refusal *rendezvous.Error, theirs preamble) *rendezvous.Error {
	switch {
	case refusal == nil:
		return rendezvous.Errorf(rendezvous.CodeState, "the control plane at %s refused this node and did not say why", g.to)
	case refusal.Code != rendezvous.CodeAuth:
		return refusal
	}
	if _, ok := negotiate(theirs); !ok {
		return rendezvous.Errorf(rendezvous.CodeState, "the control plane at %s speaks protocol version %d, this node %d to %d: use the same release everywhere",
			g.to, theirs.high, oldestVersion, ProtocolVersion)
	}
	if g.token == nil {
		return rendezvous.Errorf(rendezvous.CodeAuth,
			"%s: the control plane at %s wants a token: give its file by token_file, --token-file or RALLYPOINT_TOKEN_FILE", refusal.Text, g.to)
	}
	return rendezvous.Errorf(rendezvous.CodeAuth, "%s: the control plane at %s does not know the token in %s: give all nodes the control plane's token",
		refusal.Text, g.to, g.token.Path())
}
