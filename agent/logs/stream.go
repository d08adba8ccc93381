package logs

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// stdSet is a set of a worker's output streams.
type stdSet int

// The streams, as numbered by -r and -t.
const (
	stdNone stdSet = 0
	stdOut  stdSet = 1
	stdErr  stdSet = 2
)

// StreamSpec says for each local rank which streams are meant. The zero value
// means none for all.
type StreamSpec struct {
	all   stdSet
	ranks map[int]stdSet // nil: all ranks alike
}

// ParseStreamSpec reads the value of -r or -t: one digit 0-3 for all ranks, or
// items RANK:DIGIT joined by commas, where a rank that is not named has none.
// Unlike torchrun's, a rank may have more than one digit. The error
// quotes the value.
func ParseStreamSpec(text string) (StreamSpec, error) {
	if s, ok := parseStd(text); ok {
		return StreamSpec{all: s}, nil
	}
	ranks := make(map[int]stdSet)
	for item := range strings.SplitSeq(text, ",") {
		rankText, digit, _ := strings.Cut(item, ":")
		rank, err := strconv.ParseUint(rankText, 10, 31)
		s, ok := parseStd(digit)
		if err != nil || !ok {
			return StreamSpec{}, fmt.Errorf("%q is not a stream selection: write 0 (none), 1 (stdout), 2 (stderr) or 3 (both), "+
				"or RANK:DIGIT items such as 0:1,1:3", text)
		}
		ranks[int(rank)] = s
	}
	return StreamSpec{ranks: ranks}, nil
}

func parseStd(text string) (stdSet, bool) {
	if len(text) != 1 || text[0] < '0' || text[0] > '3' {
		return 0, false
	}
	return stdSet(text[0] - '0'), true
}

func (s StreamSpec) forRank(local int) stdSet {
	if s.ranks == nil {
		return s.all
	}
	return s.ranks[local]
}

// MaxRank is the highest local rank that is named; -1 if none is.
func (s StreamSpec) MaxRank() int {
	if len(s.ranks) == 0 {
		return -1
	}
	return slices.Max(slices.Collect(maps.Keys(s.ranks)))
}

// isNone tells that no stream of any local rank is selected.
func (s StreamSpec) isNone() bool {
	for _, std := range s.ranks {
		if std != stdNone {
			return false
		}
	}
	return s.ranks != nil || s.all == stdNone
}
