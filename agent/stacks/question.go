package stacks

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"rallypoint/core/store"
	"rallypoint/internal/backoff"
	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
)

// A question goes through the round's store, which ends with its round (docs/decisions/0115):
// who asks writes the question under the next number, at once, so that no number is left out;
// each agent of the round waits for the next number and writes its answer beside it; who has
// asked takes the answers out.
//
// That the job hangs, or steps again, is told to all agents under such a number, too.
const (
	keyLast     = "rallypoint/stacks/last" // about the last number that was used
	keyQuestion = "rallypoint/stacks/question/"
	keyAnswer   = "rallypoint/stacks/answer/"
	keyJudge    = "rallypoint/stacks/judge/" // which node tells the others of a round

	askStacks = "stacks "
	tellHang  = "hang "
)

// Node is what a node answers.
type Node struct {
	Fold
	Host   string         `json:"host"`
	Silent *time.Duration `json:"silent"` // since a step of its workers has changed; nil: they have reported none
	Steps  map[int]int64  `json:"steps"`  // of its ranks, as far as they report any

	Workers []Process `json:"workers"` // that run, at most MaxWorkers
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

func questionKey(number int64) string { return keyQuestion + strconv.FormatInt(number, 10) }

func answerKey(number int64, group int) string {
	return keyAnswer + strconv.FormatInt(number, 10) + "/" + strconv.Itoa(group)
}

func judgeKey(round uint64) string { return keyJudge + strconv.FormatUint(round, 10) }

// rest is the least time between two answers of an agent, whoever asks.
const rest = 200 * time.Millisecond

// Answer answers all questions in the store of a round for the node of that rank until ctx
// ends: collect is called once for each; and hear for what Tell tells. next is the number of the
// first one that this node has not answered; it is 1 in a store that has none before it. A store
// of a static job stays for its next rounds, in which Answer goes on with what it returns.
func Answer(ctx context.Context, s store.Store, group int, next int64, collect func(context.Context) Node, hear func(Hang)) int64 {
	if next > 1 {
		if same, err := s.Check(ctx, []string{questionKey(next - 1)}); err != nil || !same {
			next = 1
		}
	}
	for number := max(next, 1); ; number++ {
		var question []byte
		for {
			var err error
			if question, err = s.Get(ctx, questionKey(number)); err == nil {
				break
			}
			if !backoff.Sleep(ctx, time.Second) {
				return number
			}
		}
		if ctx.Err() != nil {
			return number
		}
		if told, ok := bytes.CutPrefix(question, []byte(tellHang)); ok {
			_, told, _ = bytes.Cut(told, []byte(" "))
			if h, err := decodeHang(told); err == nil && ctx.Err() == nil {
				hear(h)
			}
			continue
		}
		answer := collect(ctx)
		if text, err := json.Marshal(answer); err == nil && ctx.Err() == nil {
			_ = s.Set(ctx, answerKey(number, group), text)
		}
		if !backoff.Sleep(ctx, rest) {
			return number + 1
		}
	}
}

// Ask asks the agents of a round of so many nodes, and returns what each has answered by the
// end of ctx, or as soon as all have; nil of a node that has not. An error says that the store
// could not be asked. cleanup bounds what follows ctx.
func Ask(ctx context.Context, s store.Store, nodes int, cleanup time.Duration) ([]*Node, error) {
	number, err := draw(ctx, s, []byte(askStacks+rand.Text()))
	if err != nil {
		return nil, err
	}
	keys := make([]string, nodes)
	for i := range keys {
		keys[i] = answerKey(number, i)
	}
	if err := s.Wait(ctx, keys); err != nil && !errors.Is(err, store.ErrTimeout) {
		return nil, err
	}
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	answers := make([]*Node, nodes)
	for i, key := range keys {
		there, err := s.Check(after, []string{key})
		if err != nil {
			return nil, err
		}
		if !there {
			continue
		}
		text, err := s.Get(after, key)
		if err != nil {
			return nil, err
		}
		_, _ = s.Delete(after, key)
		answer, err := decode(text)
		if err != nil {
			answer = &Node{Fold: Fold{Groups: []Group{}, RanksCut: []int{}}}
		}
		answers[i] = answer
	}
	return answers, nil
}

// Tell tells all agents of a round that the job hangs, or that it steps again.
func Tell(ctx context.Context, s store.Store, h Hang) error {
	text, err := json.Marshal(h)
	if err == nil {
		_, err = draw(ctx, s, []byte(tellHang+rand.Text()+" "+string(text)))
	}
	return err
}

// Judge makes the node of that rank the one that tells the others of its round of a hang, and
// reports whether it is: the first that wants to be, until it resigns.
func Judge(ctx context.Context, s store.Store, round uint64, group int) (bool, error) {
	mine := []byte(strconv.Itoa(group))
	now, err := s.CompareSet(ctx, judgeKey(round), nil, mine)
	return err == nil && bytes.Equal(now, mine), err
}

// Resign lets another node of the round become the judge.
func Resign(ctx context.Context, s store.Store, round uint64) error {
	_, err := s.Delete(ctx, judgeKey(round))
	return err
}

// draw writes a text under the next number, and returns that. The text differs from others.
func draw(ctx context.Context, s store.Store, mine []byte) (int64, error) {
	number, err := lastNumber(ctx, s)
	if err != nil {
		return 0, err
	}
	for {
		number++
		now, err := s.CompareSet(ctx, questionKey(number), nil, mine)
		if err != nil {
			return 0, err
		}
		if bytes.Equal(now, mine) {
			return number, s.Set(ctx, keyLast, []byte(strconv.FormatInt(number, 10)))
		}
	}
}

// lastNumber is a number that was used, about the last one; 0: it is not known.
func lastNumber(ctx context.Context, s store.Store) (int64, error) {
	there, err := s.Check(ctx, []string{keyLast})
	if err != nil || !there {
		return 0, err
	}
	text, err := s.Get(ctx, keyLast)
	if err != nil {
		return 0, err
	}
	number, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || number < 1 {
		return 0, nil
	}
	if there, err = s.Check(ctx, []string{questionKey(number)}); !there {
		number = 0
	}
	return number, err
}

// Bounds of what an answer may hold.
const (
	maxAnswer = 4 * MaxNodeBytes
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
	for rank := range n.Steps {
		if !possible([]int{rank}) {
			return nil, errors.New("an answer with ranks that cannot be")
		}
	}
	if len(n.Workers) > MaxWorkers {
		return nil, fmt.Errorf("an answer of %d workers", len(n.Workers))
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

// check bounds what a fold from elsewhere may hold.
func (f *Fold) check() error {
	if len(f.Groups) > MaxGroups || f.GroupsCut < 0 {
		return fmt.Errorf("an answer of %d groups", len(f.Groups))
	}
	if f.Groups == nil {
		f.Groups = []Group{}
	}
	for i := range f.Groups {
		g := &f.Groups[i]
		if len(g.Ranks) == 0 || !possible(g.Ranks) || len(g.Threads) > MaxThreads+1 {
			return errors.New("an answer with a group that cannot be")
		}
		g.Source, g.State, g.Why = bounded(g.Source), bounded(g.State), bounded(g.Why)
		if g.Threads == nil {
			g.Threads = []Thread{}
		}
		for j := range g.Threads {
			t := &g.Threads[j]
			t.Frames = t.Frames[:min(len(t.Frames), MaxFrames)]
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
	for _, rank := range ranks {
		if rank < 0 || rank > maxRank {
			return false
		}
	}
	return true
}

func bounded(text string) string { return pack.CutText(printable.Text(text), maxFile) }
