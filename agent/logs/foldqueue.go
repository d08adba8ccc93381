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
	byKey   map[uint64][]*foldGroup
	next    uint64 // number of the newest group
	bytes   int
	free    []*foldGroup
}

// foldGroup is a block, and the ranks that have it.
type foldGroup struct {
	number uint64
	key    uint64
	at     time.Time // of the first
	ranks  []int
	text   []byte // of the lowest rank
}

// add puts a rank's block into the first group after the number last that has the same block, or
// into a new one, and returns its number.
func (f *foldQueue) add(rank int, last uint64, block []byte, now time.Time) uint64 {
	key := foldKey(block)
	same := f.byKey[key]
	i := sort.Search(len(same), func(i int) bool { return same[i].number > last })
	for ; i < len(same); i++ {
		g := same[i]
		if !sameButDigits(g.text, block) || slices.Contains(g.ranks, rank) {
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
	g.number, g.key, g.at = f.next, key, now
	g.ranks, g.text = append(g.ranks[:0], rank), append(g.text[:0], block...)
	f.groups = append(f.groups, g)
	if f.byKey == nil {
		f.byKey = make(map[uint64][]*foldGroup)
	}
	f.byKey[key] = append(same, g)
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

// flushDue appends the groups that are complete or have waited long enough.
func (f *foldQueue) flushDue(out []byte, dangling *bool, now time.Time) []byte {
	n := 0
	for _, g := range f.groups[f.head:] {
		if len(g.ranks) < f.sources && now.Sub(g.at) < foldWindow {
			break
		}
		n++
	}
	return f.take(out, dangling, n)
}

// flush appends the groups up to a number.
func (f *foldQueue) flush(out []byte, dangling *bool, number uint64) []byte {
	waiting := f.groups[f.head:]
	n := sort.Search(len(waiting), func(i int) bool { return waiting[i].number > number })
	return f.take(out, dangling, n)
}

// shrink appends the oldest groups while there is too much.
func (f *foldQueue) shrink(out []byte, dangling *bool) []byte {
	n, bytes := 0, f.bytes
	for waiting := f.groups[f.head:]; n < len(waiting) && (bytes > maxFolded || len(waiting)-n > maxGroups); n++ {
		bytes -= len(waiting[n].text)
	}
	return f.take(out, dangling, n)
}

// take appends the first n groups as text and removes them.
func (f *foldQueue) take(out []byte, dangling *bool, n int) []byte {
	for _, g := range f.groups[f.head : f.head+n] {
		if *dangling {
			out = append(out, '\n')
			*dangling = false
		}
		out = g.appendTo(out)
		f.bytes -= len(g.text)
		if same := f.byKey[g.key]; len(same) > 1 {
			f.byKey[g.key] = same[1:]
		} else {
			delete(f.byKey, g.key)
		}
		if len(f.free) < maxGroups && cap(g.text) <= 4<<10 {
			f.free = append(f.free, g)
		}
	}
	if f.head += n; f.head > len(f.groups)/2 {
		f.groups, f.head = append(f.groups[:0], f.groups[f.head:]...), 0
	}
	return out
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

// foldKey is the same for texts that differ in digits alone (FNV-1a, a run of digits being
// one); others may share it.
func foldKey(text []byte) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h, number := uint64(offset), false
	for _, c := range text {
		if '0' <= c && c <= '9' {
			if number {
				continue
			}
			c, number = '0', true
		} else {
			number = false
		}
		h = (h ^ uint64(c)) * prime
	}
	return h
}

// sameButDigits reports whether two texts are equal if each run of digits counts as one.
func sameButDigits(a, b []byte) bool {
	i, j := 0, 0
	for i < len(a) && j < len(b) {
		switch x, y := isDigit(a[i]), isDigit(b[j]); {
		case x && y:
			for i < len(a) && isDigit(a[i]) {
				i++
			}
			for j < len(b) && isDigit(b[j]) {
				j++
			}
		case a[i] != b[j]:
			return false
		default:
			i++
			j++
		}
	}
	return i == len(a) && j == len(b)
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
