package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"rallypoint/agent/logs"
	"rallypoint/agent/question"
	"rallypoint/core/store"
	"rallypoint/internal/host"
	"rallypoint/internal/wake"
)

// filePatience bounds how long a file system may take to return a worker's output: the caller
// waits for two seconds.
const filePatience = 1500 * time.Millisecond

// outputNode is this node's answer about its workers' output to the question of a number.
func (t *attempt) outputNode(ctx context.Context, s store.Store, r logs.Request, number int64) logs.Node {
	base := t.assignment.ranks.base
	n := logs.Node{Host: host.NameOf(t.spec.Host), First: base, Workers: t.spec.Workers, Round: t.assignment.Round, Parts: []logs.Part{}}
	streams := t.streams
	if r.Rank >= 0 {
		streams = logs.Among(t.streams, r.Rank-base)
	}
	switch {
	case r.Culprit:
		n.Round, n.Failure = t.culprit.round, t.culprit.failure
		n.Parts = append(n.Parts, t.culprit.parts...)
	case r.Follow && len(streams) > 0:
		if !t.followers.add(s, number, streams, n) {
			n.Refused = fmt.Sprintf("%d clients already follow its workers' output", maxFollowers)
		}
	case len(streams) > 0:
		limited, cancel := context.WithTimeout(ctx, filePatience)
		defer cancel()
		n.Parts = logs.Read(limited, streams, base, nil, r.Bytes/len(streams))
	}
	return n
}

const (
	followRest   = 100 * time.Millisecond // between two messages, each with the output since the last
	followLast   = 300 * time.Millisecond // for the last output after the workers have ended
	followFirst  = 4 << 10                // bytes of each stream that come first
	followBytes  = 256 << 10              // of a push
	maxFollowers = 4                      // of a node
)

// followers are the clients that follow the output of an attempt's workers.
type followers struct {
	ended chan struct{} // closed when the workers have ended
	wg    sync.WaitGroup

	mu    sync.Mutex
	stops map[int64]context.CancelFunc // by the question's number
}

func newFollowers() *followers {
	return &followers{ended: make(chan struct{}), stops: make(map[int64]context.CancelFunc)}
}

// end sends the last output and ends all followers.
func (f *followers) end() {
	close(f.ended)
	timer := time.AfterFunc(followLast, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, stop := range f.stops {
			stop()
		}
	})
	defer timer.Stop()
	f.wg.Wait()
}

func (f *followers) wait() {
	<-f.ended
	f.wg.Wait()
}

// add sends a client what the workers write to streams, beginning with the last bytes of each,
// until it leaves or the workers have ended. It returns false if there are too many followers
// already.
func (f *followers) add(s store.Store, number int64, streams []*logs.Stream, node logs.Node) bool {
	ctx, cancel := context.WithCancel(context.Background())
	f.mu.Lock()
	full := len(f.stops) >= maxFollowers
	if !full {
		f.stops[number] = cancel
	}
	f.mu.Unlock()
	if full {
		cancel()
		return false
	}
	parts := question.PartsOf(s, number)
	news := wake.New()
	f.wg.Go(func() { logs.Watch(ctx, streams, news) })
	f.wg.Go(func() {
		defer cancel()
		_ = parts.AwaitClose(ctx)
	})
	f.wg.Go(func() {
		defer func() {
			cancel()
			f.mu.Lock()
			delete(f.stops, number)
			f.mu.Unlock()
		}()
		from, said := make([]int64, len(streams)), make([]string, len(streams))
		push := func(most int) bool {
			limited, cancel := context.WithTimeout(ctx, filePatience)
			defer cancel()
			node.Parts = nil
			for i, p := range logs.Read(limited, streams, node.First, from, most) {
				if len(p.Text) == 0 && p.Why == said[i] {
					continue
				}
				if said[i] = p.Why; p.Why == "" {
					from[i] = p.At + int64(len(p.Text))
				}
				node.Parts = append(node.Parts, p)
			}
			return len(node.Parts) == 0 || parts.Push(ctx, logs.Encode(node)) == nil
		}
		for most := followFirst; push(most); most = followBytes / len(streams) {
			select {
			case <-f.ended:
			case <-ctx.Done():
			case <-time.After(followRest):
				select {
				case <-news:
					continue
				case <-f.ended:
				case <-ctx.Done():
				}
			}
			push(followBytes / len(streams))
			return
		}
	})
	return true
}
