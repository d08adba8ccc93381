package agent

import (
	"context"
	"sync"
	"time"

	"rallypoint/agent/logs"
	"rallypoint/agent/question"
	"rallypoint/agent/stacks"
	"rallypoint/core/store"
	"rallypoint/internal/backoff"
)

// answerAfter is how long workers have run before their agent connects to the store to answer
// questions: one that ends while it connects takes the connection for a stranger's and warns. A
// question that comes earlier waits in the store.
const answerAfter = time.Second

// answerQuestions answers questions about the workers of an attempt in the store of its round,
// and receives verdicts on hangs there, until the returned function is called.
func (a *Agent) answerQuestions(t *attempt, w *hangWatch) (stop func()) {
	if a.spec.DialStore == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	answered := make(chan struct{})
	where, group := a.assignment.StoreEndpoint(), a.assignment.group
	t.questions.Go(func() { // ends with stop, and with those who follow
		answering := sync.OnceFunc(func() { close(answered) })
		defer answering()
		if !backoff.Sleep(ctx, answerAfter) {
			return
		}
		s, err := a.spec.DialStore(ctx, where)
		if err != nil {
			return
		}
		defer func() { _ = s.Close() }()
		question.Answer(ctx, s, group, func(ctx context.Context, q question.Question) []byte { return a.answer(ctx, t, w, s, q) })
		answering()
		t.followers.wait()
	})
	return func() {
		cancel()
		<-answered
	}
}

// answer answers one question, with nil if it needs no answer.
func (a *Agent) answer(ctx context.Context, t *attempt, w *hangWatch, s store.Store, q question.Question) []byte {
	switch q.Kind {
	case stacks.Kind:
		if stood := a.stood.Load(); stood != nil && stacks.When(q.Text) == stacks.Before {
			return stood.Encode()
		}
		return a.stackNode(ctx, t, w).Encode()
	case stacks.KindHang:
		if w.judge.Load() { // this node has told it; the job may step again by now
			return nil
		}
		if h, err := stacks.DecodeHang(q.Text); err == nil && ctx.Err() == nil {
			w.hear(ctx, h)
		}
		return nil
	case logs.Kind:
		return logs.Encode(a.outputNode(ctx, t, s, q))
	}
	return []byte("{}") // of a newer release: the inquirer sees that this one does not know it
}
