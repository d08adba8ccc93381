package store

import (
	"fmt"
	"strings"
)

// Names lists keys for an error, with a space in front: the first few of them, quoted,
// and of long ones the beginning. It is "" for none.
func Names(keys ...string) string {
	const shown = 3
	var b strings.Builder
	for i, key := range keys[:min(shown, len(keys))] {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, " %.100q", key)
	}
	if more := len(keys) - shown; more > 0 {
		fmt.Fprintf(&b, " and %d more", more)
	}
	return b.String()
}
