package cli

import (
	"context"

	"rallypoint/backend"
	"rallypoint/core/control"
)

func (s statusQuery) fetchFromPlace(ctx context.Context) ([]byte, control.Status, error) {
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	raw, st, err := backend.Query{Place: s.place, RunID: s.run, Token: s.token, Timeout: s.timeout}.Status(limited)
	switch {
	case ctx.Err() != nil:
		return nil, st, ctx.Err()
	case err != nil:
		return nil, st, failure{err}
	}
	return raw, st, nil
}
