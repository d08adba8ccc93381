package rendezvous

import "rallypoint/core/store"

func (k KeyRequest) onStore() store.Request {
	return store.Request{Op: k.Op, Keys: k.Keys, Values: k.Values, Number: k.Amount, Block: k.Amount != 0}
}

// checkKeyRequest refuses a request whose lists do not fit its operation.
func checkKeyRequest(r KeyRequest) *Error {
	keys, values := 1, 0
	switch r.Op {
	case store.OpSet, store.OpAppend, store.OpQueuePush:
		values = 1
	case store.OpCompareSet:
		values = 2
	case store.OpNumKeys, store.OpListKeys, store.OpCancelWait:
		keys = 0
	case store.OpCheck, store.OpWait, store.OpMultiGet:
		keys = len(r.Keys)
	case store.OpMultiSet:
		keys, values = len(r.Keys), len(r.Keys)
	case store.OpGet, store.OpAdd, store.OpDelete, store.OpQueuePop, store.OpQueueLen, store.OpBarrier, opRefuse:
	default:
		return Errorf(CodeInvalid, "key operation %d is not known to this version", r.Op)
	}
	if len(r.Keys) != keys || len(r.Values) != values {
		return Errorf(CodeInvalid, "key operation %d with %d keys and %d values", r.Op, len(r.Keys), len(r.Values))
	}
	return nil
}

// Grows reports whether a request for keys may make a run take more than its answer without
// keys and values: then a driver may apply Refused in its place.
func Grows(k KeyRequest) bool {
	switch k.Op {
	case store.OpCheck, store.OpDelete, store.OpNumKeys, store.OpQueueLen, store.OpCancelWait, opRefuse:
		return false
	}
	return true
}

// opRefuse is a request that its driver had no room for: its one key is the text of the refusal.
const opRefuse store.Op = 1 << 10

const maxRefusal = 4 << 10 // bytes of that text

// Refused returns what a driver logs and applies in the place of a request for which it has no
// room: the node receives an error of CodeTooLarge, and the request counts as answered. Like
// any other it has no effect if the request was applied before.
func Refused(k KeyRequest, text string) Event {
	return KeyRequest{Request: k.Request, Round: k.Round, Op: opRefuse, Keys: []string{text}}
}
