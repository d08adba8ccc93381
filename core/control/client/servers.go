package client

import (
	"context"
	"strings"
	"time"

	"rallypoint/internal/backoff"
)

// nextAfter is how long a server of a list may take to answer before the next one is asked, too.
const nextAfter = 300 * time.Millisecond

// FirstOf asks the servers of a list, "host:port,host:port", the next one when those before have failed
// or said nothing for a while. The answer is the first one that comes without an error, or with one
// that is final; without any, the error is the first. Asking ends with the answer.
func FirstOf[T any](ctx context.Context, servers string, final func(error) bool, ask func(ctx context.Context, addr string) (T, error)) (T, error) {
	answer, failed := backoff.First(ctx, strings.Split(servers, ","), nextAfter, ask, final, func(T) {})
	if failed != nil {
		return answer, failed[0]
	}
	return answer, nil
}
