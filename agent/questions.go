package agent

import (
	"context"
	"net"
	"strconv"
	"time"

	"rallypoint/agent/question"
	"rallypoint/agent/stacks"
	"rallypoint/internal/backoff"
)

// answerAfter is how long workers have run before their agent connects to the store to answer
// questions: one that ends while it connects takes the connection for a stranger's and warns. A
// question that comes earlier waits in the store.
const answerAfter = time.Second

// answerQuestions answers what is asked of the workers of an attempt in the store of its round,
// and hears there that the job hangs, until the function that it returns is called.
func (a *Agent) answerQuestions(t *attempt, w *hangWatch) (stop func()) {
	if a.spec.DialStore == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	where, group := net.JoinHostPort(a.assignment.StoreAddr, strconv.Itoa(a.assignment.StorePort)), a.assignment.group
	go func() { // ends with stop
		defer close(done)
		if !backoff.Sleep(ctx, answerAfter) {
			return
		}
		s, err := a.spec.DialStore(ctx, where)
		if err != nil {
			return
		}
		defer func() { _ = s.Close() }()
		a.nextQuestion = question.Answer(ctx, s, group, a.nextQuestion, func(ctx context.Context, q question.Question) []byte { return a.answer(ctx, t, w, q) })
	}()
	return func() {
		cancel()
		<-done
	}
}

// answer answers one question; nil: it wants no answer.
func (a *Agent) answer(ctx context.Context, t *attempt, w *hangWatch, q question.Question) []byte {
	switch q.Kind {
	case stacks.Kind:
		return a.stackNode(ctx, t, w).Encode()
	case stacks.KindHang:
		if h, err := stacks.DecodeHang(q.Text); err == nil && ctx.Err() == nil {
			w.hear(ctx, h)
		}
		return nil
	}
	return []byte("{}") // of a newer release: who asks sees that it is not known here
}
