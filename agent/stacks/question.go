package stacks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"rallypoint/agent/question"
	"rallypoint/core/store"
	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
)

// The kinds of questions and messages to the agents of a round: where the workers are, that the job
// hangs or steps again, and that the workers of a node have ended.
const (
	Kind      = "stacks"
	KindHang  = "hang"
	KindEnded = "ended"
)

// The keys of a round: the node that judges hangs, the node that finds out where the workers were
// before one of them failed, its result, and the last words of nodes.
const (
	keyJudge  = "rallypoint/stacks/judge/"
	keyFinder = "rallypoint/stacks/finder/"
	keyStood  = "rallypoint/stacks/stood/"
	keyEnded  = "rallypoint/stacks/ended/" // and the rank of a node whose workers have all succeeded
)

// When is the moment at which a node is asked where its workers are.
type When string

// The moments.
const (
	Now    When = ""
	Before When = "before" // as they were seen last while they made no step; now if they were not
)

// Node is a node's answer.
type Node struct {
	Fold
	Host   string         `json:"host"`
	Silent *time.Duration `json:"silent"` // since a step of its workers has changed; nil: they have reported none
	Steps  map[int]int64  `json:"steps"`  // of its ranks, as far as they report any

	Ended []int `json:"ended,omitempty"` // its ranks that have succeeded

	Workers []Process    `json:"workers"` // that run, at most MaxWorkers
	Work    map[int]Work `json:"work"`    // of these, by rank; none of a node of an older release

	NCCL *NCCL `json:"nccl,omitempty"` // nil: it has no answer of NCCL's
}

// Process is a worker's process.
type Process struct {
	Rank  int    `json:"rank"`
	Pid   int    `json:"pid"`
	State string `json:"state"` // in words, as the kernel has it
}

// MaxWorkers bounds the processes in an answer.
const MaxWorkers = 256

// Processes are those of workers, as the kernel has them now.
func Processes(targets []Target) []Process {
	list := []Process{}
	for _, t := range targets[:min(len(targets), MaxWorkers)] {
		list = append(list, Process{t.Rank, t.Pid, readKernel(t.Pid).String()})
	}
	return list
}

func keyOf(what string, round uint64) string { return what + strconv.FormatUint(round, 10) }

// Encode makes the answer of a node.
func (n Node) Encode() []byte {
	text, _ := json.Marshal(n) // these types cannot fail
	return text
}

// Ask asks the agents of a round with that many nodes where their workers are; see question.Ask.
// Agents of an older release ignore when, and answer where they are now.
func Ask(ctx context.Context, s store.Store, nodes int, when When, cleanup time.Duration) ([]*Node, error) {
	_, answers, err := question.Ask(ctx, s, nodes, Kind, []byte(when), cleanup, func(text []byte) Node {
		n, err := decode(text)
		if err != nil {
			return Node{Fold: Fold{Groups: []Group{}, RanksCut: []int{}}}
		}
		return *n
	})
	return answers, err
}

// Tell tells all agents of a round that the job hangs, or that it steps again.
func Tell(ctx context.Context, s store.Store, h Hang) error {
	text, err := json.Marshal(h)
	if err == nil {
		_, err = question.Tell(ctx, s, KindHang, text)
	}
	return err
}

// Judge makes the node of that rank the one that tells the others of its round of a hang, and
// reports whether it is: the first that wants to be, until it resigns.
func Judge(ctx context.Context, s store.Store, round uint64, group int) (bool, error) {
	return claim(ctx, s, keyOf(keyJudge, round), group)
}

// claim reports whether the node of that rank is the first that claims a key.
func claim(ctx context.Context, s store.Store, key string, group int) (bool, error) {
	mine := []byte(strconv.Itoa(group))
	now, err := s.CompareSet(ctx, key, nil, mine)
	return err == nil && bytes.Equal(now, mine), err
}

// Resign lets another node of the round become the judge.
func Resign(ctx context.Context, s store.Store, round uint64) error {
	_, err := s.Delete(ctx, keyOf(keyJudge, round))
	return err
}

// Stood is where the workers of a round stood before one of them failed. Of the nodes that want to
// know, the first one finds it out for all; an empty text says that it is not known.
func Stood(ctx context.Context, s store.Store, round uint64, group int, find func() Hang) (Hang, error) {
	finder, err := claim(ctx, s, keyOf(keyFinder, round), group)
	if err != nil {
		return Hang{}, err
	}
	if !finder {
		text, err := s.Get(ctx, keyOf(keyStood, round))
		if err != nil {
			return Hang{}, err
		}
		return DecodeHang(text)
	}
	h := find()
	text, err := json.Marshal(h)
	if err != nil {
		return Hang{}, err
	}
	_ = s.Set(ctx, keyOf(keyStood, round), text) // the others have no word of it then
	return h, nil
}

func endedKey(round uint64, group int) string {
	return keyOf(keyEnded, round) + "/" + strconv.Itoa(group)
}

// End leaves the answer of a node whose workers have all succeeded: it answers no more. The first such
// node of a round tells the others.
func (n Node) End(ctx context.Context, s store.Store, round uint64, group int) error {
	if err := s.Set(ctx, endedKey(round, group), n.Encode()); err != nil {
		return err
	}
	first, err := claim(ctx, s, keyOf(keyEnded, round), group)
	if first {
		_, err = question.Tell(ctx, s, KindEnded, nil)
	}
	return err
}

// FillEnded puts what nodes have left by End in the place of the answers that are missing.
func FillEnded(ctx context.Context, s store.Store, round uint64, answers []*Node) {
	for group, n := range answers {
		if n != nil {
			continue
		}
		key := endedKey(round, group)
		if there, err := s.Check(ctx, []string{key}); err != nil || !there {
			continue
		}
		text, err := s.Get(ctx, key)
		if err != nil {
			continue
		}
		if n, err := decode(text); err == nil {
			answers[group] = n
		}
	}
}

const (
	maxAnswer = 4 * maxNodeBytes
	maxRank   = 1 << 24
)

// decode reads an answer, which may be anything: workers can write into the store, too.
func decode(text []byte) (*Node, error) {
	var n Node
	if len(text) > maxAnswer {
		return nil, fmt.Errorf("an answer of %d bytes, at most %d are allowed", len(text), maxAnswer)
	}
	if err := json.Unmarshal(text, &n); err != nil {
		return nil, err
	}
	n.Host = bounded(n.Host)
	if err := n.NCCL.check(); err != nil {
		return nil, err
	}
	for rank := range n.Steps {
		if !possible([]int{rank}) {
			return nil, errors.New("an answer with ranks that cannot be")
		}
	}
	if !possible(n.Ended) || len(n.Ended) > MaxWorkers {
		return nil, errors.New("an answer with ended ranks that cannot be")
	}
	if len(n.Workers) > MaxWorkers || len(n.Work) > MaxWorkers {
		return nil, fmt.Errorf("an answer of %d workers", max(len(n.Workers), len(n.Work)))
	}
	for i := range n.Workers {
		w := &n.Workers[i]
		if !possible([]int{w.Rank}) || w.Pid < 0 {
			return nil, errors.New("an answer with a worker that cannot be")
		}
		w.State = bounded(w.State)
	}
	return &n, n.check()
}

func (f *Fold) check() error {
	if len(f.Groups) > maxGroups || f.GroupsCut < 0 {
		return fmt.Errorf("an answer of %d groups", len(f.Groups))
	}
	if f.Groups == nil {
		f.Groups = []Group{}
	}
	for i := range f.Groups {
		g := &f.Groups[i]
		if len(g.Ranks) == 0 || !possible(g.Ranks) || len(g.Threads) > maxThreads+1 {
			return errors.New("an answer with a group that cannot be")
		}
		g.Source, g.State, g.Why = bounded(g.Source), bounded(g.State), bounded(g.Why)
		if g.Threads == nil {
			g.Threads = []Thread{}
		}
		for j := range g.Threads {
			t := &g.Threads[j]
			t.Frames = t.Frames[:min(len(t.Frames), maxFrames)]
			if t.Frames == nil {
				t.Frames = []Frame{}
			}
			for k, c := range t.Frames {
				t.Frames[k] = newFrame(c.File, max(c.Line, 0), c.Function)
			}
		}
	}
	if !possible(f.RanksCut) {
		return errors.New("an answer with ranks that cannot be")
	}
	return nil
}

func possible(ranks []int) bool {
	return !slices.ContainsFunc(ranks, func(rank int) bool { return rank < 0 || rank > maxRank })
}

func bounded(text string) string { return pack.CutText(printable.Text(text), maxFile) }
