package failure

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/store"
	"rallypoint/internal/backoff"
	"rallypoint/internal/printable"
)

// The nodes of a round collect their failures in its store. Each publishes its first one as soon
// as it sees it: it increments a counter and appends a line with the result. So one server
// decides the order, independently of the nodes' clocks. The first failure is the root cause,
// unless an announced stop tells which node failed first (CulpritFirst).
const (
	failuresKey     = "rallypoint/failures"
	failureCountKey = failuresKey + "/count"
)

// What the nodes tell each other is bounded: the first failure comes with its
// message and its last stderr, some more in short, the rest not at all.
const (
	maxRootCause  = 16 << 10 // bytes of message and of stderr, each
	maxCollateral = 512      // bytes of another's message
	maxHang       = 600
	maxStack      = 4 << 10
	maxPeers      = 16
	maxPeersText  = maxPeers * 16 * maxRootCause // of all of them, as JSON
)

// peerFailure is a Failure as nodes tell it to each other.
type peerFailure struct {
	Number int64  `json:"number"`
	Round  uint64 `json:"round"`
	Group  int    `json:"group"`
	Failure
	Stderr string `json:"stderr,omitempty"`
}

// Publish publishes a failure of this node, whose rank is group, in the store of the round. first
// says that no node has announced a failure before; otherwise only the number decides that.
func (f *Failure) Publish(ctx context.Context, keys store.Store, round uint64, group int, first bool) error {
	number, err := keys.Add(ctx, failureCountKey, 1)
	if err != nil || number > maxPeers {
		return err
	}
	p := peerFailure{Number: number, Round: round, Group: group, Failure: *f}
	if first || number == 1 {
		p.Message, p.Stderr = lastBytes(f.Message, maxRootCause), lastBytes(string(f.Stderr), maxRootCause)
		p.Hang, p.Stack, p.Stood = firstBytes(f.Hang, maxHang), firstBytes(f.Stack, maxStack), firstBytes(f.Stood, maxHang)
	} else {
		p.Message = lastBytes(f.Message, maxCollateral)
		p.SharedOutput, p.Hang, p.Stack, p.Still, p.Stood = false, "", "", 0, ""
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return keys.Append(ctx, failuresKey, append(text, '\n'))
}

// ReadPublished returns the failures that the nodes of a round published, the first one first;
// nil if there are none or the store does not answer.
func ReadPublished(ctx context.Context, keys store.Store, round uint64) []Failure {
	text, err := store.TryGet(ctx, keys, failuresKey)
	if err != nil || text == nil {
		return nil
	}
	return parsePeers(text, round)
}

// AwaitPublished waits until the node of a rank has published a failure in a round, or ctx
// ends.
func AwaitPublished(ctx context.Context, keys store.Store, round uint64, group int) error {
	for {
		if err := keys.Wait(ctx, []string{failuresKey}); err != nil {
			return err
		}
		if slices.ContainsFunc(ReadPublished(ctx, keys, round), func(f Failure) bool { return f.group == group }) {
			return nil
		}
		if !backoff.Sleep(ctx, awaitInterval) {
			return ctx.Err()
		}
	}
}

// awaitInterval is how often the store is read for one failure while it has others.
const awaitInterval = 20 * time.Millisecond

// CulpritFirst puts the failure of the node of a rank before the others, because it was
// announced first; a rank without a failure changes nothing.
func CulpritFirst(published []Failure, group int) []Failure {
	at := slices.IndexFunc(published, func(f Failure) bool { return f.group == group })
	if at <= 0 {
		return published
	}
	sorted := slices.Concat(published[at:at+1], published[:at], published[at+1:])
	for i := range sorted {
		sorted[i].order = time.Unix(0, int64(i))
	}
	return sorted
}

// lastBytes is the end of a text that is longer than most.
func lastBytes(text string, most int) string {
	if len(text) <= most {
		return strings.ToValidUTF8(text, "\uFFFD")
	}
	return "..." + strings.ToValidUTF8(text[len(text)-most:], "")
}

// firstBytes is the beginning of a text that is longer than most.
func firstBytes(text string, most int) string {
	if len(text) <= most {
		return strings.ToValidUTF8(text, "\uFFFD")
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

// parsePeers reads the lines of failuresKey that are of a round, in the order of their
// numbers. It skips those that it does not understand.
func parsePeers(text []byte, round uint64) []Failure {
	var published []peerFailure
	for line := range bytes.Lines(text[:min(len(text), maxPeersText)]) {
		var p peerFailure
		if len(published) < maxPeers && json.Unmarshal(line, &p) == nil && p.Round == round {
			published = append(published, p)
		}
	}
	slices.SortStableFunc(published, func(a, b peerFailure) int { return int(a.Number - b.Number) })
	var failures []Failure
	for i, p := range published {
		f := p.Failure
		f.Host, f.ErrorFile = printable.Text(lastBytes(f.Host, maxCollateral)), printable.Text(lastBytes(f.ErrorFile, unix.PathMax))
		f.Message, f.Stderr = plainLines(lastBytes(f.Message, maxRootCause)), []byte(lastBytes(p.Stderr, maxRootCause))
		f.Hang, f.Stack, f.Stood = printable.Text(firstBytes(f.Hang, maxHang)), plainLines(firstBytes(f.Stack, maxStack)), printable.Text(firstBytes(f.Stood, maxHang))
		f.group, f.order = p.Group, time.Unix(0, int64(i))
		failures = append(failures, f)
	}
	return failures
}

// WithPeers puts the failures that other nodes published around this node's own:
// those before and those after its first.
func WithPeers(own, published []Failure, group int) []Failure {
	at := slices.IndexFunc(published, func(f Failure) bool { return f.group == group })
	if at < 0 {
		at = len(published) // the others got ahead of it
	}
	first := own[RootCause(own)].order
	var before, after []Failure
	for i, f := range published {
		f.order = first.Add(time.Duration(i - at))
		switch {
		case i < at:
			before = append(before, f)
		case i > at:
			after = append(after, f)
		}
	}
	return slices.Concat(before, own, after)
}
