package etcdstore

import (
	"math"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// keyValue is a key at one revision; the zero keyValue is one that is not there.
type keyValue struct {
	key      string
	value    []byte
	created  int64 // revision of its creation
	modified int64 // revision of its last change
}

func keyValueOf(kv *mvccpb.KeyValue) keyValue {
	return keyValue{key: string(kv.GetKey()), value: kv.GetValue(), created: kv.GetCreateRevision(), modified: kv.GetModRevision()}
}

func keyValuesOf(list []*mvccpb.KeyValue) []keyValue {
	kvs := make([]keyValue, len(list))
	for i, kv := range list {
		kvs[i] = keyValueOf(kv)
	}
	return kvs
}

// prefixEnd returns the end of the range of all keys that begin with prefix.
func prefixEnd(prefix string) string { return clientv3.GetPrefixRangeEnd(prefix) }

// rangeRequest asks for one key, or for all from key to end.
type rangeRequest struct {
	key, end  string
	limit     int64
	revision  int64 // 0: the latest
	keysOnly  bool
	countOnly bool
}

type rangeResponse struct {
	revision int64
	kvs      []keyValue
	more     bool
	count    int64
}

// An op is one request inside a transaction.
type op = clientv3.Op

func getOp(key string) op { return clientv3.OpGet(key) }

func rangeOp(r rangeRequest) op {
	options := []clientv3.OpOption{clientv3.WithLimit(r.limit), clientv3.WithRev(r.revision)}
	if r.end != "" {
		options = append(options, clientv3.WithRange(r.end))
	}
	if r.keysOnly {
		options = append(options, clientv3.WithKeysOnly())
	}
	if r.countOnly {
		options = append(options, clientv3.WithCountOnly())
	}
	return clientv3.OpGet(r.key, options...)
}

func putOp(key string, value []byte, lease int64) op {
	return clientv3.OpPut(key, string(value), clientv3.WithLease(clientv3.LeaseID(lease)))
}

func deleteOp(key, end string) op {
	if end == "" {
		return clientv3.OpDelete(key)
	}
	return clientv3.OpDelete(key, clientv3.WithRange(end))
}

// A condition of a transaction.
type condition = clientv3.Cmp

// unchanged holds if key was last modified at revision; revision 0 is a missing key.
func unchanged(key string, revision int64) condition {
	return clientv3.Compare(clientv3.ModRevision(key), "=", revision)
}

// absent holds if no key from key to end exists.
func absent(key, end string) condition {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", 0).WithRange(end)
}

// createdAt holds if key exists and was created at that revision.
func createdAt(key string, revision int64) condition {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", revision)
}

// below holds if key exists with a value that comes before the given one, byte by
// byte.
func below(key string, value []byte) condition {
	return clientv3.Compare(clientv3.Value(key), "<", string(value))
}

// txnRequest is a transaction: either branch, depending on all conditions.
type txnRequest struct {
	conditions []condition
	success    []op
	failure    []op
}

type txnResponse struct {
	revision  int64
	succeeded bool
	results   []opResult // of the branch that was taken
}

// opResult is what one read of a transaction came to.
type opResult struct {
	kvs   []keyValue
	count int64
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

func txnResponseOf(r *clientv3.TxnResponse) txnResponse {
	t := txnResponse{revision: r.Header.GetRevision(), succeeded: r.Succeeded}
	for _, one := range r.Responses {
		found := one.GetResponseRange()
		t.results = append(t.results, opResult{kvs: keyValuesOf(found.GetKvs()), count: found.GetCount()})
	}
	return t
}

// watchRequest asks for all changes of keys from key to end, or of one key, from
// revision on.
type watchRequest struct {
	key, end string
	revision int64
}

func (w watchRequest) encode() *pb.WatchRequest {
	create := &pb.WatchCreateRequest{Key: []byte(w.key), RangeEnd: []byte(w.end), StartRevision: w.revision}
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}
}

// event is one change of a key.
type event struct {
	deleted bool
	kv      keyValue // of a deletion only key and modified
}

// maxResponse bounds an answer. Large ones are whole pages of large values.
const maxResponse = math.MaxInt32

// maxOps is how many operations etcd takes in one transaction by default
// (max-txn-ops is 128); a caller may add some of its own.
const maxOps = 120
