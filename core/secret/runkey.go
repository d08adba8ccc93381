package secret

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
)

// runKeyMark begins the line of a token that opens one run and nothing else; the key and the
// run id follow, with a colon between them.
const runKeyMark = "run:"

// RunKey derives from a control plane's token the one that opens a run and nothing else, as a
// line of a token file. It is an error if that would be too long.
func RunKey(token []byte, run string) ([]byte, error) {
	if bytes.ContainsAny([]byte(run), "\r\n") || string(bytes.TrimSpace([]byte(run))) != run || run == "" {
		return nil, fmt.Errorf("the run id %q cannot stand in a token file", run)
	}
	line := deriveRunKey(token, run)
	if len(line) > maxToken {
		return nil, fmt.Errorf("the run id has %d bytes: its token would be longer than %d", len(run), maxToken)
	}
	return line, nil
}

func deriveRunKey(token []byte, run string) []byte {
	h := hmac.New(sha256.New, token)
	_, _ = io.WriteString(h, "run\x00"+run)
	return []byte(runKeyMark + hex.EncodeToString(h.Sum(nil)) + ":" + run)
}

// RunOf returns the run that a token opens, "" if it opens all.
func RunOf(token []byte) string {
	rest, is := bytes.CutPrefix(token, []byte(runKeyMark))
	sum, run, found := bytes.Cut(rest, []byte(":"))
	if !is || !found || len(sum) != hex.EncodedLen(sha256.Size) {
		return ""
	}
	return string(run)
}

// Run returns the run that the tokens of the file open, "" if they open all.
func (t *Token) Run() string { return RunOf(t.Keys()[0]) }

// KeysFor returns the tokens by which a peer may open a run and nothing else.
func (t *Token) KeysFor(run string) [][]byte {
	var keys [][]byte
	for _, key := range t.Keys() {
		switch RunOf(key) {
		case "":
			keys = append(keys, deriveRunKey(key, run))
		case run:
			keys = append(keys, key)
		}
	}
	return keys
}

// oneRun reports whether tokens open the same.
func oneRun(keys [][]byte) bool {
	return !slices.ContainsFunc(keys, func(key []byte) bool { return RunOf(key) != RunOf(keys[0]) })
}
