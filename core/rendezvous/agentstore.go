package rendezvous

import (
	"errors"

	"rallypoint/core/store"
)

// agentStore is the agents' keys of one round.
type agentStore struct {
	engine *store.Engine
	woken  []*keyWait // waits ended by the write being applied
}

// prepare makes w tell the space when it is over.
func (a *agentStore) prepare(w *keyWait) {
	w.waiter.Wake = func() { a.woken = append(a.woken, w) }
}

// quotaHint says where the limits of keys come from.
const quotaHint = "; the agents of a job need little, so look what fills it; `rallypoint serve` takes --max-keys and --max-key-bytes"

func keyError(runID string, r KeyRequest, err error) *Error {
	code, hint := CodeInternal, ""
	switch {
	case errors.Is(err, store.ErrQuota):
		code, hint = CodeTooLarge, quotaHint
	case errors.Is(err, store.ErrNotNumber):
		code = CodeNumber
	case errors.Is(err, store.ErrTooLarge):
		code = CodeTooLarge
	case errors.Is(err, store.ErrQueueEmpty):
		code = CodeEmpty
	case errors.Is(err, store.ErrArguments):
		code = CodeInvalid
	}
	return Errorf(code, "run %q, round %d, key %.200q: %v%s", runID, r.Round, r.Keys[0], err, hint)
}
