package rendezvous

import (
	"errors"

	"rallypoint/core/store"
)

type agentStore struct {
	out    *output
	engine *store.Engine
	woken  []*keyWait // waits ended by the write being applied; none between two events
	seq    uint64     // of the wait that was registered last
}

func newAgentStore(out *output, l store.Limits) *agentStore {
	return &agentStore{out: out, engine: store.NewEngine(l)}
}

// register gives a wait its place among those that a write may end.
func (a *agentStore) register(w *keyWait) {
	a.seq++
	w.seq, w.engine = a.seq, a.engine
	w.waiter.Wake = func() { a.woken = append(a.woken, w) }
}

// set writes a key of ours; the quota leaves room for these.
func (a *agentStore) set(key string, value []byte) {
	if err := a.engine.Set(key, value); err != nil {
		a.out.note("cannot write %s: %v", key, err)
	}
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
