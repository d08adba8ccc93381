package agent

import (
	"context"
	"sync"
	"time"

	"rallypoint/agent/logs"
	"rallypoint/agent/process"
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
func (w *hangWatch) answerQuestions() (stop func()) {
	t := w.t
	if t.spec.DialStore == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	answered := make(chan struct{})
	where, group, followers := t.assignment.StoreEndpoint(), t.assignment.group, t.followers
	t.questions.Go(func() { // ends with stop, and with those who follow
		answering := sync.OnceFunc(func() { close(answered) })
		defer answering()
		if !backoff.Sleep(ctx, answerAfter) {
			return
		}
		s, err := t.spec.DialStore(ctx, where)
		if err != nil {
			return
		}
		defer func() { _ = s.Close() }()
		question.Answer(ctx, s, group, question.Agent{
			Hear:   w.hearQuestion,
			Answer: func(ctx context.Context, q question.Question) ([]byte, bool) { return w.answer(ctx, s, q) },
		})
		if ctx.Err() != nil && t.spec.HangTimeout >= 0 && t.assignment.groups > 1 && t.allSucceeded() {
			last := stacks.Node{Host: host.NameOf(t.spec.Host), Ended: w.succeeded()}
			limited, cancel := context.WithTimeout(context.Background(), resignPatience)
			_ = last.End(limited, s, t.assignment.Round, group) // for a node that waits for ever
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
func (w *hangWatch) answer(ctx context.Context, s store.Store, q question.Question) (text []byte, shared bool) {
	switch q.Kind {
	case stacks.Kind:
		if stood := w.t.hangs.stood.Load(); stood != nil && stacks.When(q.Text) == stacks.Before {
			return stood.Encode(), true
		}
		return w.stackNode(ctx).Encode(), true
	case logs.Kind:
		r, err := logs.DecodeRequest(q.Text)
		if err != nil {
			return logs.Encode(logs.Node{}), true
		}
		return logs.Encode(w.t.outputNode(ctx, s, r, q.Number)), !r.Follow
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

// succeeded are the ranks of the workers that have ended while others run; those that failed end the
// attempt.
func (w *hangWatch) succeeded() (ranks []int) {
	for _, p := range w.t.workers.Procs {
		if p.HasExited() && p.Code == 0 {
			ranks = append(ranks, w.t.assignment.ranks.base+p.Local)
		}
	}
	return ranks[:min(len(ranks), stacks.MaxWorkers)]
}

// stackNode is this node's answer: where its workers are, and their steps.
func (w *hangWatch) stackNode(ctx context.Context) stacks.Node {
	t := w.t
	targets := t.stackTargets(t.workers.Procs)
	nccl := make(chan *stacks.NCCL, 1) // it answers late if a process does not answer it
	go func() {
		own, _ := host.Addrs()
		nccl <- stacks.AskNCCL(ctx, process.Getenv(t.spec.Environ), own, targets)
	}()
	workers := stacks.Collect(ctx, targets, stacks.MainThread, stacks.Patience)
	stacks.Trace(ctx, targets, workers, func(ctx context.Context, argv []string) ([]byte, error) {
		return t.forker.Output(ctx, argv, merge(t.spec.Environ, nil))
	})
	n := stacks.Node{Fold: stacks.NewFold(workers), Host: host.NameOf(t.spec.Host), Steps: make(map[int]int64), Workers: stacks.Processes(targets), Work: stacks.Works(targets)}
	n.Ended = w.succeeded()
	n.NCCL = <-nccl
	for local, step := range t.progress.Steps() {
		n.Steps[t.assignment.ranks.base+local] = step
	}
	if w.alive.Load() {
		silent := time.Duration(w.silent.Load())
		n.Silent = &silent
	}
	return n
}
