package secret

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"strings"
)

// Purpose says what an authenticated connection is for, so that it cannot be used for anything
// else. New purposes are only appended.
type Purpose byte

// The purposes.
const (
	PurposeControl Purpose = 1 // a node, an administrator or HTTP at a control plane
	PurposeStore   Purpose = 2 // workers of another node at a round store
	PurposeSide    Purpose = 3 // the same at another port of the round store's node
)

// Direction says which end has made a proof, so that no proof can be sent back to its
// maker.
type Direction string

// The directions.
const (
	OfNode   Direction = "rallypoint 2: the node or administrator knows the token\x00"
	OfServer Direction = "rallypoint 2: the control plane knows the token\x00" // whatever it serves
)

// Transcript is what a proof covers: one TLS connection, through a secret that only its two ends
// can derive, and the messages on it. A proof is not valid on another connection, so an attacker
// with a connection to either end gains nothing by relaying it.
type Transcript struct {
	Purpose  Purpose
	Said     []byte // the preambles so far: the node's, and before the server's proof the server's
	Exporter []byte // see Exporter
	Name     []byte // the destination, where the purpose alone does not say it
}

func (t Transcript) mac(d Direction, key []byte) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = io.WriteString(h, string(d))
	_, _ = h.Write([]byte{byte(t.Purpose), byte(len(t.Said))})
	_, _ = h.Write(t.Said)
	_, _ = h.Write(t.Exporter)
	_, _ = h.Write(t.Name) // last, and none of the others varies in length
	return h.Sum(nil)
}

// Prove makes a MAC for each key.
func (t Transcript) Prove(d Direction, keys [][]byte) [][]byte {
	var macs [][]byte
	for _, key := range keys {
		macs = append(macs, t.mac(d, key))
	}
	return macs
}

// Check returns the key that one of the MACs is made with, nil if it is none of keys. The
// time it takes depends neither on how much of a MAC is right nor on which key matches.
func (t Transcript) Check(d Direction, macs, keys [][]byte) []byte {
	var known []byte
	for _, key := range keys {
		want := t.mac(d, key)
		for _, got := range macs {
			if hmac.Equal(got, want) {
				known = key
			}
		}
	}
	return known
}

// fingerprintBytes is the length of a fingerprint before it is written in hexadecimal.
const fingerprintBytes = 4

// Fingerprint names a key without telling anything of it that would help to find it.
func Fingerprint(key []byte) string {
	h := hmac.New(sha256.New, key)
	_, _ = io.WriteString(h, "rallypoint fingerprint")
	return hex.EncodeToString(h.Sum(nil)[:fingerprintBytes])
}

// Fingerprints returns those of the tokens that count now, the first line's first.
func (t *Token) Fingerprints() []string {
	var list []string
	for _, key := range t.Keys() {
		list = append(list, Fingerprint(key))
	}
	return list
}

// Describe names the file and its fingerprints, for logs and errors of its owner.
func (t *Token) Describe() string {
	return t.path + ", fingerprint " + strings.Join(t.Fingerprints(), " and ")
}
