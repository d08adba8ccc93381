// Package question asks the agents of a round something, or tells them something, through the
// round's store (docs/decisions/0115). The inquirer writes the question under the next number
// with one operation, so that no number is skipped. Each agent of the round waits for the next
// number and writes its answer next to it. The inquirer removes the answers. All of it ends with
// the round's store.
package question

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"time"

	"rallypoint/core/store"
	"rallypoint/internal/backoff"
)

// Stacks were the first that was asked for: agents of every release wait for these keys.
const (
	keyLast     = "rallypoint/stacks/last" // about the last number that was used
	keyQuestion = "rallypoint/stacks/question/"
	keyAnswer   = "rallypoint/stacks/answer/"
)

// Question is a question, or a message.
type Question struct {
	Number int64
	Kind   string // one word
	Text   []byte // the rest, which may be anything: workers can write into the store, too
}

// Agent is how a node hears what is in the store of a round.
type Agent struct {
	// Hear takes a message, and reports whether a question is one, which needs no answer.
	Hear func(context.Context, Question) bool
	// Answer answers a question. An answer that is shared goes to all who have asked the same.
	Answer func(context.Context, Question) (text []byte, shared bool)
}

// Answer hands the questions in the store of a round to the node of that rank until ctx ends, also
// those that were asked before the node came: messages one after the other, and questions the newest
// first, so that none waits for those whose inquirers have given up. Kinds take turns, and so many
// questions wait at most.
func Answer(ctx context.Context, s store.Store, group int, a Agent) {
	b := backlog{store: s, agent: a, next: 1}
	for ctx.Err() == nil {
		if err := b.read(ctx); err != nil {
			backoff.Sleep(ctx, time.Second)
			continue
		}
		q, waits := b.pick()
		if !waits || over(ctx, s, q.Number) {
			continue
		}
		text, shared := a.Answer(ctx, q)
		for _, number := range append(b.same(q, shared), q.Number) {
			if ctx.Err() == nil {
				_ = s.Set(ctx, answerKey(number, group), text)
			}
		}
		b.rest(ctx)
	}
}

const (
	// rest is the least time between two answers of an agent, whoever asks.
	rest = 200 * time.Millisecond
	// maxWaiting is how many questions wait for an agent; older ones are not answered.
	maxWaiting = 64
	// maxRead is how many questions an agent reads before it answers one.
	maxRead = 4096
)

// backlog is what an agent has read and not answered.
type backlog struct {
	store store.Store
	agent Agent
	next  int64      // number to be read
	waits []Question // in their order
	last  string     // kind of the last answer
}

// read reads all questions that are in the store, and passes messages on. It waits for one if there
// is nothing to answer.
func (b *backlog) read(ctx context.Context) error {
	for range maxRead {
		get := b.store.Get
		if len(b.waits) > 0 {
			get = func(ctx context.Context, key string) ([]byte, error) { return store.TryGet(ctx, b.store, key) }
		}
		if there, err := b.take(ctx, get); !there {
			return err
		}
	}
	return nil
}

// rest reads what comes until the next question may be answered: a message does not wait for that.
func (b *backlog) rest(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, rest)
	defer cancel()
	get := func(_ context.Context, key string) ([]byte, error) { return b.store.Get(limited, key) }
	for there := true; there; {
		there, _ = b.take(ctx, get)
	}
	<-limited.Done()
}

// take reads the next question, if get finds it, and passes it on if it is a message.
func (b *backlog) take(ctx context.Context, get func(context.Context, string) ([]byte, error)) (there bool, err error) {
	text, err := get(ctx, questionKey(b.next))
	if err != nil || text == nil {
		return false, err
	}
	kind, text, _ := bytes.Cut(text, []byte(" "))
	_, text, _ = bytes.Cut(text, []byte(" "))
	q := Question{b.next, string(kind), text}
	b.next++
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if string(kind) != isOver && !b.agent.Hear(ctx, q) {
		b.waits = append(b.waits[max(0, len(b.waits)+1-maxWaiting):], q)
	}
	return true, nil
}

// pick takes the newest question out, of another kind than the last one if there is any.
func (b *backlog) pick() (q Question, any bool) {
	if len(b.waits) == 0 {
		return q, false
	}
	at := len(b.waits) - 1
	for i := at; i >= 0; i-- {
		if b.waits[i].Kind != b.last {
			at = i
			break
		}
	}
	q = b.waits[at]
	b.waits = slices.Delete(b.waits, at, at+1)
	b.last = q.Kind
	return q, true
}

// same takes the questions out that ask the same, if their answer is shared.
func (b *backlog) same(q Question, shared bool) (numbers []int64) {
	b.waits = slices.DeleteFunc(b.waits, func(other Question) bool {
		same := shared && other.Kind == q.Kind && bytes.Equal(other.Text, q.Text)
		if same {
			numbers = append(numbers, other.Number)
		}
		return same
	})
	return numbers
}

// isOver replaces a question whose inquirer has what it wanted, or has given up.
const isOver = "over"

func over(ctx context.Context, s store.Store, number int64) bool {
	text, err := store.TryGet(ctx, s, questionKey(number))
	return err == nil && string(text) == isOver
}

// Ask asks the agents of a round with that many nodes. It returns the question's number and the
// answers, as soon as there are all of them or ctx ends, with nil for a node that has not
// answered. read makes an answer of its text, which may be anything. It returns an error if the store
// could not be asked. cleanup limits the time that it takes after the end of ctx.
func Ask[T any](ctx context.Context, s store.Store, nodes int, kind string, text []byte, cleanup time.Duration, read func(text []byte) T) (number int64, answers []*T, err error) {
	if number, err = Tell(ctx, s, kind, text); err != nil {
		return 0, nil, err
	}
	keys := make([]string, nodes)
	for i := range keys {
		keys[i] = answerKey(number, i)
	}
	if err := s.Wait(ctx, keys); err != nil && !errors.Is(err, store.ErrTimeout) {
		return 0, nil, err
	}
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	if err := s.Set(after, questionKey(number), []byte(isOver)); err != nil {
		return 0, nil, err
	}
	answers = make([]*T, nodes)
	for i, key := range keys {
		there, err := s.Check(after, []string{key})
		if err != nil {
			return 0, nil, err
		}
		if !there {
			continue
		}
		text, err := s.Get(after, key)
		if err != nil {
			return 0, nil, err
		}
		answer := read(text)
		answers[i] = &answer
		_, _ = s.Delete(after, key)
	}
	return number, answers, nil
}

// Tell tells all agents of a round something under the next number, and returns that.
func Tell(ctx context.Context, s store.Store, kind string, text []byte) (int64, error) {
	mine := []byte(kind + " " + rand.Text()) // differs from what others write
	if len(text) > 0 {
		mine = append(append(mine, ' '), text...)
	}
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
	text, err := store.TryGet(ctx, s, keyLast)
	if err != nil {
		return 0, err
	}
	number, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || number < 1 {
		return 0, nil
	}
	there, err := s.Check(ctx, []string{questionKey(number)})
	if !there {
		number = 0
	}
	return number, err
}

func questionKey(number int64) string { return keyQuestion + strconv.FormatInt(number, 10) }

func answerKey(number int64, group int) string {
	return keyAnswer + strconv.FormatInt(number, 10) + "/" + strconv.Itoa(group)
}
