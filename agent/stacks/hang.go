package stacks

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"rallypoint/internal/pack"
	"rallypoint/internal/wording"
)

// Hang says that a job makes no step any more, and where its workers are.
type Hang struct {
	Text     string        `json:"text"`     // all of it in one sentence; "": the job makes steps again
	Silent   time.Duration `json:"silent"`   // since the last step
	Suspects []int         `json:"suspects"` // ranks, the first of which the sentence names first
	Round    uint64        `json:"round"`    // of whose workers it tells
	Restart  int           `json:"restart"`  // the rank whose worker is ended for it; -1: none
	Fold
}

// Resumed says that a job that made no step makes steps again.
func Resumed() Hang { return Hang{Suspects: []int{}, Restart: -1} }

const (
	maxSentence = 500
	maxSuspects = 1000
	maxHang     = 4 * maxNodeBytes
	maxPlaces   = 3 // of ranks in a sentence
)

// newHang makes the finding about a job that has made no step for that long, which logs, status
// and page all show. Its answers are those of a round's nodes, nil for one that has not answered.
// Ranks with a step below the largest are suspects, and if there are none, ranks whose stacks
// differ from those of most others. hosts are the names of the nodes, as far as they are known.
// unasked: the nodes without an answer prove nothing by that. idle: the job has never made a step.
func newHang(silent time.Duration, nodes []*Node, hosts []string, unasked, idle bool) Hang {
	s, what := story{unasked: unasked}, "step"
	if idle {
		what = "sign of work"
	}
	var folds []Fold
	steps := make(map[int]int64)
	s.hosts = make(map[int]string)
	for i, n := range nodes {
		if n == nil {
			s.mute = append(s.mute, i)
			if i < len(hosts) && hosts[i] != "" {
				s.named = append(s.named, bounded(hosts[i]))
			}
			continue
		}
		folds = append(folds, n.Fold)
		s.ended = append(s.ended, n.Ended...)
		for _, g := range n.Groups {
			for _, rank := range g.Ranks {
				s.hosts[rank] = n.Host
			}
		}
		maps.Copy(steps, n.Steps)
	}
	for _, rank := range s.ended {
		delete(steps, rank)
	}
	s.fold = Join(folds)
	s.late = behind(steps)
	suspects := s.suspects()
	h := Hang{Silent: silent, Restart: -1, Suspects: suspects[:min(len(suspects), maxSuspects)], Fold: s.fold}
	h.shrink(maxNodeBytes)
	h.Text = pack.CutText(fmt.Sprintf("no %s for %s: %s", what, wording.Seconds(silent), s.text(suspects)), maxSentence)
	if text := NCCLText(nodes); text != "" {
		h.Text = pack.CutText(h.Text+"; "+text, maxSentence)
	}
	return h
}

// behind returns how many steps ranks are behind the largest. It returns none if several ranks,
// more than a quarter, are behind: then the others are ahead, or the ranks do not step together.
func behind(steps map[int]int64) map[int]int64 {
	largest := int64(-1)
	for _, step := range steps {
		largest = max(largest, step)
	}
	late := make(map[int]int64)
	for rank, step := range steps {
		if step < largest {
			late[rank] = largest - step
		}
	}
	if len(late) > 1 && 4*len(late) > len(steps) {
		return nil
	}
	return late
}

// story has the parts of the sentence.
type story struct {
	fold  Fold
	hosts map[int]string // of ranks
	late  map[int]int64  // steps by which ranks are behind
	ended []int          // ranks that have succeeded
	mute  []int          // ranks of nodes that did not answer
	named []string       // these, as far as their names are known

	unasked bool // these could not be asked in time
}

func (s *story) suspects() []int {
	if len(s.late) == 0 {
		return s.fold.Suspects()
	}
	return slices.Sorted(maps.Keys(s.late))
}

// text says where the suspects are and where most others, or where all are.
func (s *story) text(suspects []int) string {
	var parts []string
	if len(s.ended) > 0 && s.fold.Ranks() > 0 {
		parts = append(parts, s.endedText())
	}
	if n := len(s.mute); n > 0 {
		verb := form(n, "does", "do") + " not answer"
		if s.unasked {
			verb = form(n, "was", "were") + " not asked in time"
		}
		names := RankList(s.mute)
		if len(s.named) == len(s.mute) {
			names += " (" + strings.Join(s.named[:min(len(s.named), maxPlaces)], ", ")
			if len(s.named) > maxPlaces {
				names += ", ..."
			}
			names += ")"
		}
		parts = append(parts, fmt.Sprintf("%s %s %s", form(n, "node", "nodes"), names, verb))
	}
	places := s.fold.Groups
	if len(suspects) > 0 {
		places = nil
		for _, g := range s.fold.Groups {
			if g = g.among(suspects, true); len(g.Ranks) > 0 {
				places = append(places, g)
			}
		}
	}
	switch {
	case len(s.fold.Groups) == 0:
		parts = append(parts, "it is not known where the workers are")
	case len(s.fold.Groups) == 1 && len(suspects) == 0 && s.fold.Ranks() > 1 && len(s.mute) == 0:
		all := fmt.Sprintf("all %d", s.fold.Ranks())
		if s.fold.Ranks() == 2 {
			all = "both"
		}
		parts = append(parts, all+" ranks "+places[0].stand())
	default:
		for _, g := range places[:min(len(places), maxPlaces)] {
			parts = append(parts, s.place(g))
		}
		if left := len(places) - maxPlaces; left > 0 {
			parts = append(parts, wording.Count(left, "more group of ranks", "more groups of ranks")+" elsewhere")
		}
	}
	if others := s.others(suspects); others != "" {
		parts = append(parts, others)
	}
	return strings.Join(parts, "; ")
}

func (s *story) endedText() string {
	var running []int
	for _, g := range s.fold.Groups {
		running = append(running, g.Ranks...)
	}
	slices.Sort(running)
	slices.Sort(s.ended)
	return fmt.Sprintf("%s %s ended; %s %s still running", RanksText(s.ended), form(len(s.ended), "has", "have"), RanksText(running), form(len(running), "is", "are"))
}

func (s *story) place(g Group) string {
	host := s.hosts[g.Ranks[0]]
	late := s.late[g.Ranks[0]]
	for _, rank := range g.Ranks {
		if s.hosts[rank] != host {
			host = ""
		}
		if s.late[rank] != late {
			late = 0
		}
	}
	text := RanksText(g.Ranks)
	if host != "" {
		text += " (" + host + ")"
	}
	if late > 0 {
		text += " " + form(len(g.Ranks), "is", "are") + " " + wording.Count(int(late), "step", "steps") + " behind and"
	}
	return text + " " + g.stand()
}

// others says where most ranks are that are no suspects.
func (s *story) others(suspects []int) string {
	if len(suspects) == 0 || len(s.fold.Groups) == 0 {
		return ""
	}
	var most Group
	for _, g := range s.fold.Groups {
		if g = g.among(suspects, false); len(g.Ranks) > len(most.Ranks) {
			most = g
		}
	}
	switch n := len(most.Ranks); n {
	case 0:
		return ""
	case 1:
		return "the other " + most.wait()
	default:
		return fmt.Sprintf("%d others %s", n, most.wait())
	}
}

// among returns the group with those of its ranks alone that are among some ranks, or are not.
func (g Group) among(ranks []int, are bool) Group {
	g.Ranks = slices.DeleteFunc(slices.Clone(g.Ranks), func(rank int) bool { return slices.Contains(ranks, rank) != are })
	return g
}

// stand says where a group is: in the user's line if that runs, else in the call that waits.
func (g Group) stand() string {
	is, waits := form(len(g.Ranks), "is ", "are "), form(len(g.Ranks), "waits in ", "wait in ")
	if len(g.Threads) == 0 {
		return is + g.State
	}
	frames := g.Threads[0].Frames
	if len(frames) == 0 {
		return is + "in no Python code"
	}
	line := func(f Frame) string { return fmt.Sprintf("%s:%d %s", path.Base(f.File), f.Line, f.Function) }
	at := slices.IndexFunc(frames, Frame.user)
	switch {
	case at == 0:
		return is + "at " + line(frames[0])
	case at < 0:
		return waits + line(frames[0])
	}
	return waits + called(frames[:at]) + callingLine + line(frames[at])
}

// called names the call of a library in which a user's line waits: the innermost one that has a name
// for users, backward and not _engine_run_backward.
func called(frames []Frame) string {
	public := func(f Frame) bool { return !strings.HasPrefix(f.Function, "_") && !strings.HasPrefix(f.Function, "<") }
	return frames[max(0, slices.IndexFunc(frames, public))].Function
}

// wait is stand without the line that makes the waiting call.
func (g Group) wait() string {
	text, _, _ := strings.Cut(g.stand(), callingLine)
	return text
}

// callingLine precedes the user's line that makes the waiting call.
const callingLine = ", called in "

// NewStood is newHang of a job that has ended by a failure since; its text is empty if of no worker
// is known where it stood.
func NewStood(silent time.Duration, nodes []*Node) Hang {
	h := newHang(silent, nodes, nil, false, false)
	if !slices.ContainsFunc(h.Groups, Group.placed) {
		h.Text = ""
	}
	return h
}

// DecodeHang parses a finding that Tell wrote. It must expect any bytes, since workers can write
// to the store, too.
func DecodeHang(text []byte) (h Hang, err error) {
	if len(text) > maxHang {
		return h, fmt.Errorf("a hang of %d bytes, at most %d are allowed", len(text), maxHang)
	}
	if err := json.Unmarshal(text, &h); err != nil {
		return h, err
	}
	if h.Suspects == nil || !possible(h.Suspects) || h.Silent < 0 {
		return h, fmt.Errorf("a hang with suspects or a time that cannot be")
	}
	h.Text = pack.CutText(bounded(h.Text), maxSentence)
	return h, h.check()
}
