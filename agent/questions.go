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
	"rallypoint/internal/host"
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
	where, group, followers := a.assignment.StoreEndpoint(), a.assignment.group, t.followers
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
		question.Answer(ctx, s, group, question.Agent{
			Hear:   func(ctx context.Context, q question.Question) bool { return w.hearQuestion(ctx, q) },
			Answer: func(ctx context.Context, q question.Question) ([]byte, bool) { return a.answer(ctx, t, w, s, q) },
		})
		if ctx.Err() != nil && a.spec.HangTimeout >= 0 && a.assignment.groups > 1 && t.allSucceeded() {
			last := stacks.Node{Host: host.NameOf(a.spec.Host), Ended: w.succeeded(t)}
			limited, cancel := context.WithTimeout(context.Background(), resignPatience)
			_ = last.End(limited, s, a.assignment.Round, group) // for a node that waits for ever
			cancel()
		}
		answering()
		followers.wait()
	})
	return func() {
		cancel()
		<-answered
	}
}

// answer answers one question. The answer is shared unless its inquirer then follows by its number.
func (a *Agent) answer(ctx context.Context, t *attempt, w *hangWatch, s store.Store, q question.Question) (text []byte, shared bool) {
	switch q.Kind {
	case stacks.Kind:
		if stood := a.stood.Load(); stood != nil && stacks.When(q.Text) == stacks.Before {
			return stood.Encode(), true
		}
		return a.stackNode(ctx, t, w).Encode(), true
	case logs.Kind:
		r, err := logs.DecodeRequest(q.Text)
		if err != nil {
			return logs.Encode(logs.Node{}), true
		}
		return logs.Encode(a.outputNode(ctx, t, s, r, q.Number)), !r.Follow
	}
	return []byte("{}"), true // of a newer release: the inquirer sees that this one does not know it
}

// hearQuestion takes a verdict on a hang, or that a node has ended, and reports whether a question is one.
func (w *hangWatch) hearQuestion(ctx context.Context, q question.Question) bool {
	switch q.Kind {
	case stacks.KindEnded:
		w.peerEnded.Store(true)
		return true
	case stacks.KindHang:
	default:
		return false
	}
	if w.judge.Load() { // this node has told it; the job may step again by now
		return true
	}
	if h, err := stacks.DecodeHang(q.Text); err == nil && ctx.Err() == nil {
		w.hear(ctx, h)
	}
	return true
}
