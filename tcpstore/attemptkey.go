package tcpstore

import (
	"bytes"
	"slices"
)

// attemptPrefixes are the beginnings of wire keys that torch 2.2-2.5 workers use
// under an agent's store: they wrap it in PrefixStore("/worker/attempt_<n>"),
// where n is TORCHELASTIC_RESTART_COUNT, and the client puts another slash in
// front. The form with one slash is what a prefix without its own slash gives.
var attemptPrefixes = [][]byte{
	[]byte("//worker/attempt_"),
	[]byte("/worker/attempt_"),
}

// normalizeAttemptKey returns key with the number of a leading worker/attempt_<n>/
// replaced by 0, whatever its number of digits. Other keys are returned as they
// are. A single digit is replaced in key's own memory.
//
// The restart count differs between agents after a node was lost, and workers
// that prefix by it would never meet. torch 2.6 and newer has no such prefix.
func normalizeAttemptKey(key []byte) []byte {
	for _, prefix := range attemptPrefixes {
		rest, ok := bytes.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		digits := 0
		for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
			digits++
		}
		if digits == 0 || digits == len(rest) || rest[digits] != '/' {
			return key
		}
		if digits > 1 {
			return slices.Concat(prefix, []byte{'0'}, rest[digits:])
		}
		rest[0] = '0'
		return key
	}
	return key
}
