package logs

import (
	"slices"
	"sort"
	"strconv"
	"time"
)

// Limits of what waits in a queue: beyond them the oldest does not wait any more.
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

// add puts a rank's block into the first group behind the number last that has the same,
// or into a new one, and returns its number.
func (q *foldQueue) add(rank int, last uint64, block []byte, now time.Time) uint64 {
	key := foldKey(block)
	same := q.byKey[key]
	i := sort.Search(len(same), func(i int) bool { return same[i].number > last })
	for ; i < len(same); i++ {
		g := same[i]
		if !sameButDigits(g.text, block) || slices.Contains(g.ranks, rank) {
			continue
		}
		if rank < slices.Min(g.ranks) {
			q.bytes += len(block) - len(g.text)
			g.text = append(g.text[:0], block...)
		}
		g.ranks = append(g.ranks, rank)
		return g.number
	}
	q.next++
	g := new(foldGroup)
	if n := len(q.free); n > 0 {
		g, q.free = q.free[n-1], q.free[:n-1]
	}
	g.number, g.key, g.at = q.next, key, now
	g.ranks, g.text = append(g.ranks[:0], rank), append(g.text[:0], block...)
	q.groups = append(q.groups, g)
	if q.byKey == nil {
		q.byKey = make(map[uint64][]*foldGroup)
	}
	q.byKey[key] = append(same, g)
	q.bytes += len(block)
	return g.number
}

// oldest is the group that waits longest, nil if none does.
func (q *foldQueue) oldest() *foldGroup {
	if q.head == len(q.groups) {
		return nil
	}
	return q.groups[q.head]
}

// flushDue appends the groups that are complete or have waited long enough.
func (q *foldQueue) flushDue(out []byte, dangling *bool, now time.Time) []byte {
	n := 0
	for _, g := range q.groups[q.head:] {
		if len(g.ranks) < q.sources && now.Sub(g.at) < foldWindow {
			break
		}
		n++
	}
	return q.take(out, dangling, n)
}

// flush appends the groups up to a number.
func (q *foldQueue) flush(out []byte, dangling *bool, number uint64) []byte {
	waiting := q.groups[q.head:]
	n := sort.Search(len(waiting), func(i int) bool { return waiting[i].number > number })
	return q.take(out, dangling, n)
}

// shrink appends the oldest groups while there is too much.
func (q *foldQueue) shrink(out []byte, dangling *bool) []byte {
	n, bytes := 0, q.bytes
	for waiting := q.groups[q.head:]; n < len(waiting) && (bytes > maxFolded || len(waiting)-n > maxGroups); n++ {
		bytes -= len(waiting[n].text)
	}
	return q.take(out, dangling, n)
}

// take appends the first n groups as text and removes them.
func (q *foldQueue) take(out []byte, dangling *bool, n int) []byte {
	for _, g := range q.groups[q.head : q.head+n] {
		if *dangling {
			out = append(out, '\n')
			*dangling = false
		}
		out = g.appendTo(out)
		q.bytes -= len(g.text)
		if same := q.byKey[g.key]; len(same) > 1 {
			q.byKey[g.key] = same[1:]
		} else {
			delete(q.byKey, g.key)
		}
		if len(q.free) < maxGroups && cap(g.text) <= 4<<10 {
			q.free = append(q.free, g)
		}
	}
	if q.head += n; q.head > len(q.groups)/2 {
		q.groups, q.head = append(q.groups[:0], q.groups[q.head:]...), 0
	}
	return out
}

// appendTo appends the block with the ranks in front of each line.
func (g *foldGroup) appendTo(out []byte) []byte {
	slices.Sort(g.ranks)
	start := len(out)
	out = append(appendRanks(append(out, '['), g.ranks), "] "...)
	end := len(out)
	for i := 0; i < len(g.text); {
		j := i
		for j < len(g.text) && g.text[j] != '\n' {
			j++
		}
		if i > 0 {
			out = append(out, out[start:end]...)
		}
		line := g.text[i:j]
		if n := len(line); n > 0 && line[n-1] == '\r' {
			line = line[:n-1]
		}
		out = append(appendValid(out, line), '\n')
		i = j + 1
	}
	return out
}

// appendRanks appends sorted ranks as 0-3,7.
func appendRanks(out []byte, ranks []int) []byte {
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendInt(out, int64(ranks[i]), 10)
		if j > i {
			out = strconv.AppendInt(append(out, '-'), int64(ranks[j]), 10)
		}
		i = j + 1
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
