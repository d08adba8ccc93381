package etcdstore

// The messages of etcd's v3 API (etcdserverpb) that are used here, with the field
// numbers of its rpc.proto and kv.proto.

// The methods.
const (
	methodRange        = "/etcdserverpb.KV/Range"
	methodTxn          = "/etcdserverpb.KV/Txn"
	methodWatch        = "/etcdserverpb.Watch/Watch"
	methodGrant        = "/etcdserverpb.Lease/LeaseGrant"
	methodRevoke       = "/etcdserverpb.Lease/LeaseRevoke"
	methodKeepAlive    = "/etcdserverpb.Lease/LeaseKeepAlive"
	methodAuthenticate = "/etcdserverpb.Auth/Authenticate"
	methodStatus       = "/etcdserverpb.Maintenance/Status"
)

// keyValue is a key at one revision (mvccpb.KeyValue).
type keyValue struct {
	key      string
	value    []byte
	created  int64 // revision of its creation
	modified int64 // revision of its last change
	lease    int64
}

func decodeKeyValue(m []byte) (kv keyValue, err error) {
	err = decode(m, func(f field) error {
		switch f.id {
		case 1:
			kv.key = string(f.bytes)
		case 2:
			kv.created = f.number
		case 3:
			kv.modified = f.number
		case 5:
			kv.value = append([]byte{}, f.bytes...)
		case 6:
			kv.lease = f.number
		}
		return nil
	})
	return kv, err
}

// decodeRevision reads the revision out of a ResponseHeader.
func decodeRevision(m []byte) (revision int64, err error) {
	err = decode(m, func(f field) error {
		if f.id == 3 {
			revision = f.number
		}
		return nil
	})
	return revision, err
}

// prefixEnd returns the end of the range of all keys that begin with prefix.
func prefixEnd(prefix string) string {
	end := []byte(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return string(end[:i+1])
		}
	}
	return "\x00" // all keys from prefix on
}

// rangeRequest asks for one key, or for all from key to end.
type rangeRequest struct {
	key, end  string
	limit     int64
	revision  int64 // 0: the latest
	keysOnly  bool
	countOnly bool
}

func (r rangeRequest) encode() message {
	return message(nil).text(1, r.key).text(2, r.end).number(3, r.limit).number(4, r.revision).
		flag(8, r.keysOnly).flag(9, r.countOnly)
}

type rangeResponse struct {
	revision int64
	kvs      []keyValue
	more     bool
	count    int64
}

func decodeRangeResponse(m []byte) (r rangeResponse, err error) {
	err = decode(m, func(f field) (err error) {
		switch f.id {
		case 1:
			r.revision, err = decodeRevision(f.bytes)
		case 2:
			var kv keyValue
			kv, err = decodeKeyValue(f.bytes)
			r.kvs = append(r.kvs, kv)
		case 3:
			r.more = f.number != 0
		case 4:
			r.count = f.number
		}
		return err
	})
	return r, err
}

// An op is one request inside a transaction (RequestOp).
type op message

func getOp(key string) op {
	return op(message(nil).message(1, rangeRequest{key: key}.encode()))
}

func rangeOp(r rangeRequest) op { return op(message(nil).message(1, r.encode())) }

func putOp(key string, value []byte, lease int64) op {
	return op(message(nil).message(2, message(nil).text(1, key).bytes(2, value).number(3, lease)))
}

func deleteOp(key, end string) op {
	return op(message(nil).message(3, message(nil).text(1, key).text(2, end)))
}

// A condition of a transaction (Compare).
type condition message

// The targets of conditions.
const (
	targetCreated  = 1
	targetModified = 2
	targetValue    = 3
)

// compareLess is what a condition asks for, besides equality, which is 0.
const compareLess = 2

// unchanged holds if key was last modified at revision; revision 0 is a missing key.
func unchanged(key string, revision int64) condition {
	m := message(nil).number(2, targetModified).text(3, key)
	return condition(oneofNumber(m, 6, revision))
}

// absent holds if no key from key to end exists.
func absent(key, end string) condition {
	m := message(nil).number(2, targetCreated).text(3, key)
	return condition(oneofNumber(m, 5, 0).text(64, end))
}

// createdAt holds if key exists and was created at that revision.
func createdAt(key string, revision int64) condition {
	m := message(nil).number(2, targetCreated).text(3, key)
	return condition(oneofNumber(m, 5, revision))
}

// below holds if key exists with a value that comes before the given one, byte by
// byte.
func below(key string, value []byte) condition {
	return condition(message(nil).number(1, compareLess).number(2, targetValue).text(3, key).message(7, value))
}

// oneofNumber adds a number that is there even if it is 0.
func oneofNumber(m message, field int, v int64) message {
	if v != 0 {
		return m.number(field, v)
	}
	return append(m, byte(field<<3|wireVarint), 0)
}

// txnRequest is a transaction: either branch, depending on all conditions.
type txnRequest struct {
	conditions []condition
	success    []op
	failure    []op
}

func (t txnRequest) encode() message {
	var m message
	for _, c := range t.conditions {
		m = m.message(1, c)
	}
	for _, o := range t.success {
		m = m.message(2, o)
	}
	for _, o := range t.failure {
		m = m.message(3, o)
	}
	return m
}

type txnResponse struct {
	revision  int64
	succeeded bool
	results   []opResult // of the branch that was taken
}

// opResult is what one op of a transaction came to.
type opResult struct {
	kvs     []keyValue
	count   int64
	deleted int64
}

// first returns the first key found; ok is false if there is none.
func (r opResult) first() (kv keyValue, ok bool) {
	if len(r.kvs) == 0 {
		return keyValue{}, false
	}
	return r.kvs[0], true
}

// result returns the i-th result; an empty one if the server sent too few.
func (t txnResponse) result(i int) opResult {
	if i >= len(t.results) {
		return opResult{}
	}
	return t.results[i]
}

func decodeTxnResponse(m []byte) (t txnResponse, err error) {
	err = decode(m, func(f field) (err error) {
		switch f.id {
		case 1:
			t.revision, err = decodeRevision(f.bytes)
		case 2:
			t.succeeded = f.number != 0
		case 3:
			var r opResult
			r, err = decodeOpResult(f.bytes)
			t.results = append(t.results, r)
		}
		return err
	})
	return t, err
}

func decodeOpResult(m []byte) (r opResult, err error) {
	err = decode(m, func(f field) error {
		switch f.id {
		case 1:
			found, err := decodeRangeResponse(f.bytes)
			r.kvs, r.count = found.kvs, found.count
			return err
		case 3:
			return decode(f.bytes, func(f field) error {
				if f.id == 2 {
					r.deleted = f.number
				}
				return nil
			})
		}
		return nil
	})
	return r, err
}

// watchRequest asks for all changes of keys from key to end, or of one key, from
// revision on.
type watchRequest struct {
	key, end string
	revision int64
}

func (w watchRequest) encode() message {
	create := message(nil).text(1, w.key).text(2, w.end).number(3, w.revision)
	return message(nil).message(1, create)
}

// watchResponse is some changes, or the end of a watch.
type watchResponse struct {
	revision  int64
	created   bool
	canceled  bool
	compacted int64 // not 0: what was asked for is gone up to this revision
	reason    string
	events    []event
}

// event is one change of a key.
type event struct {
	deleted bool
	kv      keyValue // of a deletion only key and modified
}

func decodeWatchResponse(m []byte) (w watchResponse, err error) {
	err = decode(m, func(f field) (err error) {
		switch f.id {
		case 1:
			w.revision, err = decodeRevision(f.bytes)
		case 3:
			w.created = f.number != 0
		case 4:
			w.canceled = f.number != 0
		case 5:
			w.compacted = f.number
		case 6:
			w.reason = string(f.bytes)
		case 11:
			var e event
			e, err = decodeEvent(f.bytes)
			w.events = append(w.events, e)
		}
		return err
	})
	return w, err
}

func decodeEvent(m []byte) (e event, err error) {
	err = decode(m, func(f field) (err error) {
		switch f.id {
		case 1:
			e.deleted = f.number != 0
		case 2:
			e.kv, err = decodeKeyValue(f.bytes)
		}
		return err
	})
	return e, err
}

// grantRequest asks for a lease of so many seconds under the given number.
func grantRequest(ttl, id int64) message { return message(nil).number(1, ttl).number(2, id) }

// leaseRequest revokes a lease, or keeps it alive.
func leaseRequest(id int64) message { return message(nil).number(1, id) }

type leaseResponse struct {
	id, ttl int64
	problem string
}

// decodeLeaseResponse reads a LeaseGrantResponse or a LeaseKeepAliveResponse.
func decodeLeaseResponse(m []byte) (l leaseResponse, err error) {
	err = decode(m, func(f field) error {
		switch f.id {
		case 2:
			l.id = f.number
		case 3:
			l.ttl = f.number
		case 4:
			l.problem = string(f.bytes)
		}
		return nil
	})
	return l, err
}

func authenticateRequest(user, password string) message {
	return message(nil).text(1, user).text(2, password)
}

func decodeToken(m []byte) (token string, err error) {
	err = decode(m, func(f field) error {
		if f.id == 2 {
			token = string(f.bytes)
		}
		return nil
	})
	return token, err
}

// status is a StatusResponse.
type status struct {
	version string
	member  uint64
	leader  uint64
}

func decodeStatus(m []byte) (s status, err error) {
	err = decode(m, func(f field) error {
		switch f.id {
		case 1:
			return decode(f.bytes, func(f field) error {
				if f.id == 2 {
					s.member = uint64(f.number)
				}
				return nil
			})
		case 2:
			s.version = string(f.bytes)
		case 4:
			s.leader = uint64(f.number)
		}
		return nil
	})
	return s, err
}
