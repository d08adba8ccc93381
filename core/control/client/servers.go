package client

import (
	"context"
	"strings"
	"time"
)

// nextAfter is how long a server of a list may take to answer before the next one is asked, too.
const nextAfter = 300 * time.Millisecond

// FirstOf asks the servers of a list, "host:port,host:port", the next one when those before have failed
// or said nothing for a while. The answer is the first one that comes without an error, or with one
// that is final; without any, the error is the first. Asking ends with the answer.
func FirstOf[T any](ctx context.Context, servers string, final func(error) bool, ask func(ctx context.Context, addr string) (T, error)) (T, error) {
	addrs := strings.Split(servers, ",")
	if len(addrs) == 1 {
		return ask(ctx, addrs[0])
	}
	type answer struct {
		of  T
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan answer, len(addrs))
	pending := 0
	defer func() {
		cancel()
		for ; pending > 0; pending-- { // they end with ctx
			<-answers
		}
	}()
	next := func() {
		if len(addrs) > 0 {
			addr := addrs[0]
			addrs, pending = addrs[1:], pending+1
			go func() {
				of, err := ask(ctx, addr)
				answers <- answer{of, err}
			}()
		}
	}
	next()
	var first answer
	stagger := time.NewTicker(nextAfter)
	defer stagger.Stop()
	for pending > 0 {
		select {
		case <-stagger.C:
			next()
		case a := <-answers:
			pending--
			if a.err == nil || final(a.err) {
				return a.of, a.err
			}
			if first.err == nil {
				first = a
			}
			next()
		}
	}
	return first.of, first.err
}
