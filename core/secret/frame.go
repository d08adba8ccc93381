package secret

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/pack"
)

// Frames of an opening: those of docs/protocol.md with the same numbers.
const (
	kindRefuse = 3
	kindProof  = 14

	frameHead = 4 // bytes of a frame's length
	// MaxProofFrame bounds the body of a frame before its sender has proven that it knows
	// the token, and of the answer.
	MaxProofFrame = 1 << 10
)

// ErrMalformed is the cause of every decoding error.
var ErrMalformed = pack.ErrMalformed

// Proof holds a MAC for each token that its sender knows, the server's only the one for the token
// by which the peer was let in, the connection's purpose and, where that does not say it, its
// destination.
type Proof struct {
	MACs    [][]byte
	Purpose Purpose
	Name    []byte // packed
}

// Pack writes the fields.
func (pr Proof) Pack(p *pack.Packer) {
	p.List(4)
	p.Uint(kindProof)
	p.Values(pr.MACs)
	p.Uint(uint64(pr.Purpose))
	p.Bytes(pr.Name)
}

// ReadProof reads the fields after the frame's kind, but for the name.
func ReadProof(u *pack.Unpacker) Proof {
	f := Proof{MACs: u.Values(maxTokens, sha256.Size)}
	purpose := u.Uint()
	if purpose > math.MaxUint8 {
		u.Fail("a proof for the purpose %d", purpose)
	}
	f.Purpose = Purpose(purpose)
	return f
}

// ErrDenied is the only answer to a peer that has not proven that it knows the token.
var ErrDenied = rendezvous.Errorf(rendezvous.CodeAuth, "authentication failed")

func packRefusal(p *pack.Packer) {
	p.List(3)
	p.Uint(kindRefuse)
	rendezvous.PackError(p, ErrDenied)
}

func appendFrame(dst []byte, write func(*pack.Packer)) []byte {
	from := len(dst)
	dst = pack.Append(append(dst, make([]byte, frameHead)...), write)
	binary.LittleEndian.PutUint32(dst[from:], uint32(len(dst)-from-frameHead))
	return dst
}

// readFrame reads a proof or a refusal, and no byte after it.
func readFrame(r io.Reader) (proof Proof, refused bool, err error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Proof{}, false, noEOF(err)
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size > MaxProofFrame {
		return Proof{}, false, fmt.Errorf("%w: a frame of %d bytes where %d are allowed", ErrMalformed, size, MaxProofFrame)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return Proof{}, false, noEOF(err)
	}
	return parseFrame(body)
}

func parseFrame(body []byte) (proof Proof, refused bool, err error) {
	u := pack.NewUnpacker(body)
	defer u.Release()
	if u.Open() == 0 {
		u.Fail("no frame kind")
	}
	switch kind := u.Uint(); kind { // further fields of a newer version end the body: they need not be skipped
	case kindProof:
		proof = ReadProof(u)
		proof.Name = u.Bytes(MaxProofFrame)
	case kindRefuse:
		refused = true
	default:
		u.Fail("a frame of kind %d in place of a proof", kind)
	}
	return proof, refused, u.Err()
}
