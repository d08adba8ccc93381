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
const (
	keyLast     = "rallypoint/stacks/last" // about the last number that was used
	keyQuestion = "rallypoint/stacks/question/"
	keyAnswer   = "rallypoint/stacks/answer/"
)

func questionKey(number int64) string { return keyQuestion + strconv.FormatInt(number, 10) }

func answerKey(number int64, group int) string {
	return keyAnswer + strconv.FormatInt(number, 10) + "/" + strconv.Itoa(group)
}

// rest is the least time between two answers of an agent, whoever asks.
const rest = 200 * time.Millisecond

// Answer answers all questions in the store of a round for the node of that rank until ctx
// ends. collect is called once for each.
func Answer(ctx context.Context, s store.Store, group int, collect func(context.Context) Fold) {
	for number := int64(1); ctx.Err() == nil; number++ {
		for s.Wait(ctx, []string{questionKey(number)}) != nil {
			if !backoff.Sleep(ctx, time.Second) {
				return
			}
		}
		fold := collect(ctx)
		if text, err := json.Marshal(fold); err == nil && ctx.Err() == nil {
			_ = s.Set(ctx, answerKey(number, group), text)
		}
		backoff.Sleep(ctx, rest)
	}
}

// Ask asks the agents of a round of so many nodes, and returns what each has answered by the
// end of ctx, or as soon as all have; nil of a node that has not. An error says that the store
// could not be asked. cleanup bounds what follows ctx.
func Ask(ctx context.Context, s store.Store, nodes int, cleanup time.Duration) ([]*Fold, error) {
	number, err := draw(ctx, s)
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
	folds := make([]*Fold, nodes)
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
		fold, err := decode(text)
		if err != nil {
			fold = &Fold{Groups: []Group{}, RanksCut: []int{}}
		}
		folds[i] = fold
	}
	return folds, nil
}

// draw writes a question under the next number, and returns that.
func draw(ctx context.Context, s store.Store) (int64, error) {
	number, err := lastNumber(ctx, s)
	if err != nil {
		return 0, err
	}
	mine := []byte("stacks " + rand.Text())
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
func decode(text []byte) (*Fold, error) {
	var f Fold
	if len(text) > maxAnswer {
		return nil, fmt.Errorf("an answer of %d bytes, at most %d are allowed", len(text), maxAnswer)
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, err
	}
	if len(f.Groups) > MaxGroups || f.GroupsCut < 0 {
		return nil, fmt.Errorf("an answer of %d groups", len(f.Groups))
	}
	if f.Groups == nil {
		f.Groups = []Group{}
	}
	for i := range f.Groups {
		g := &f.Groups[i]
		if len(g.Ranks) == 0 || !possible(g.Ranks) || len(g.Threads) > MaxThreads+1 {
			return nil, errors.New("an answer with a group that cannot be")
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
		return nil, errors.New("an answer with ranks that cannot be")
	}
	return &f, nil
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
