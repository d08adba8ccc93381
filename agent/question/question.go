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

// Answer hands all questions in the store of a round to the node of that rank until ctx ends,
// one after the other, also those that were asked before the node came; nil answers nothing.
func Answer(ctx context.Context, s store.Store, group int, answer func(context.Context, Question) []byte) {
	for number := int64(1); ctx.Err() == nil; {
		text, err := s.Get(ctx, questionKey(number))
		if err != nil {
			backoff.Sleep(ctx, time.Second)
			continue
		}
		if ctx.Err() != nil {
			return
		}
		kind, text, _ := bytes.Cut(text, []byte(" "))
		_, text, _ = bytes.Cut(text, []byte(" "))
		if told := answer(ctx, Question{number, string(kind), text}); told != nil {
			if ctx.Err() == nil {
				_ = s.Set(ctx, answerKey(number, group), told)
			}
			backoff.Sleep(ctx, rest)
		}
		number++
	}
}

// rest is the least time between two answers of an agent, whoever asks.
const rest = 200 * time.Millisecond

// Ask asks the agents of a round with that many nodes. It returns the question's number and the
// answers, as soon as there are all of them or ctx ends, with nil for a node that has not
// answered. It returns an error if the store could not be asked. cleanup limits the time that it
// takes after the end of ctx.
func Ask(ctx context.Context, s store.Store, nodes int, kind string, text []byte, cleanup time.Duration) (number int64, answers [][]byte, err error) {
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
	answers = make([][]byte, nodes)
	for i, key := range keys {
		there, err := s.Check(after, []string{key})
		if err != nil {
			return 0, nil, err
		}
		if !there {
			continue
		}
		if answers[i], err = s.Get(after, key); err != nil {
			return 0, nil, err
		}
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
