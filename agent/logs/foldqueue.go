package logs

import (
	"bytes"
	"slices"
	"sort"
	"strconv"
	"time"

	"rallypoint/internal/wording"
)

// Limits of a queue. Beyond them the oldest line is written without further waiting.
const (
	maxFolded = 4 << 20 // bytes
	maxGroups = 1 << 14
)

// foldQueue is the blocks (lines, tracebacks) that wait for the same of other ranks, in
// the order in which the first of each came.
type foldQueue struct {
	sources int          // streams that may have the same
	groups  []*foldGroup // from head on
	head    int
	byKey   map[string][]*foldGroup
	key     []byte // reused
	next    uint64 // number of the newest group
	bytes   int
	free    []*foldGroup

	out      []byte // left the queue, and is not written yet; reused
	dangling bool   // the last of it did not end its line
}

// foldGroup is a block, and the ranks that have it.
type foldGroup struct {
	number uint64
	key    string    // see appendFoldKey
	at     time.Time // of the first
	ranks  []int
	text   []byte // of the lowest rank
}

// add puts a rank's block into the first group after the number last that has the same block, or
// into a new one, and returns its number.
func (f *foldQueue) add(rank int, last uint64, block []byte, now time.Time) uint64 {
	f.key = appendFoldKey(f.key[:0], block)
	same := f.byKey[string(f.key)]
	later := sort.Search(len(same), func(i int) bool { return same[i].number > last })
	for _, g := range same[later:] {
		if slices.Contains(g.ranks, rank) {
			continue
		}
		if rank < slices.Min(g.ranks) {
			f.bytes += len(block) - len(g.text)
			g.text = append(g.text[:0], block...)
		}
		g.ranks = append(g.ranks, rank)
		return g.number
	}
	f.next++
	g := new(foldGroup)
	if n := len(f.free); n > 0 {
		g, f.free = f.free[n-1], f.free[:n-1]
	}
	g.number, g.key, g.at = f.next, string(f.key), now
	g.ranks, g.text = append(g.ranks[:0], rank), append(g.text[:0], block...)
	f.groups = append(f.groups, g)
	if f.byKey == nil {
		f.byKey = make(map[string][]*foldGroup)
	}
	f.byKey[g.key] = append(same, g)
	f.bytes += len(block)
	return g.number
}

// oldest is the group that waits longest, nil if none does.
func (f *foldQueue) oldest() *foldGroup {
	if f.head == len(f.groups) {
		return nil
	}
	return f.groups[f.head]
}

// flushDue takes the groups out that are complete or have waited long enough.
func (f *foldQueue) flushDue(now time.Time) {
	n := 0
	for _, g := range f.groups[f.head:] {
		if len(g.ranks) < f.sources && now.Sub(g.at) < foldWindow {
			break
		}
		n++
	}
	f.take(n)
}

// flush takes the groups out up to a number.
func (f *foldQueue) flush(number uint64) {
	waiting := f.groups[f.head:]
	f.take(sort.Search(len(waiting), func(i int) bool { return waiting[i].number > number }))
}

// shrink takes the oldest groups out while there is too much.
func (f *foldQueue) shrink() {
	n, bytes := 0, f.bytes
	for waiting := f.groups[f.head:]; n < len(waiting) && (bytes > maxFolded || len(waiting)-n > maxGroups); n++ {
		bytes -= len(waiting[n].text)
	}
	f.take(n)
}

// take makes text of the first n groups and removes them.
func (f *foldQueue) take(n int) {
	for _, g := range f.groups[f.head : f.head+n] {
		if f.dangling {
			f.out = append(f.out, '\n')
			f.dangling = false
		}
		f.out = g.appendTo(f.out)
		f.bytes -= len(g.text)
		if same := f.byKey[g.key]; len(same) > 1 {
			f.byKey[g.key] = same[1:]
		} else {
			delete(f.byKey, g.key)
		}
		g.key = ""
		if len(f.free) < maxGroups && cap(g.text) <= 4<<10 {
			f.free = append(f.free, g)
		}
	}
	if f.head += n; f.head > len(f.groups)/2 {
		f.groups, f.head = append(f.groups[:0], f.groups[f.head:]...), 0
	}
}

// appendTo appends the block with the ranks in front of each line.
func (f *foldGroup) appendTo(out []byte) []byte {
	slices.Sort(f.ranks)
	start := len(out)
	out = append(appendRanks(append(out, '['), f.ranks), "] "...)
	end := len(out)
	for line := range bytes.Lines(f.text) {
		if len(out) > end {
			out = append(out, out[start:end]...)
		}
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		out = append(appendValid(out, line), '\n')
	}
	return out
}

// appendRanks appends sorted ranks as 0-3,7.
func appendRanks(out []byte, ranks []int) []byte {
	start := len(out)
	for first, last := range wording.Runs(ranks) {
		if len(out) > start {
			out = append(out, ',')
		}
		out = strconv.AppendInt(out, int64(first), 10)
		if last > first {
			out = strconv.AppendInt(append(out, '-'), int64(last), 10)
		}
	}
	return out
}

// appendFoldKey appends a text with one 0 for each run of digits: the same for texts that differ in
// digits alone.
func appendFoldKey(key, text []byte) []byte {
	number := false
	for _, c := range text {
		digit := '0' <= c && c <= '9'
		switch {
		case !digit:
			key = append(key, c)
		case !number:
			key = append(key, '0')
		}
		number = digit
	}
	return key
}
