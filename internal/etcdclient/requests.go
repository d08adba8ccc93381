package etcdclient

import (
	"math"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// KeyValue is a key at one revision; the zero KeyValue is one that is not there.
type KeyValue struct {
	Key      string
	Value    []byte
	Created  int64 // revision of its creation
	Modified int64 // revision of its last change
	Lease    int64 // on which it is; 0: none
}

func keyValueOf(kv *mvccpb.KeyValue) KeyValue {
	return KeyValue{Key: string(kv.GetKey()), Value: kv.GetValue(), Created: kv.GetCreateRevision(), Modified: kv.GetModRevision(), Lease: kv.GetLease()}
}

func keyValuesOf(list []*mvccpb.KeyValue) []KeyValue {
	kvs := make([]KeyValue, len(list))
	for i, kv := range list {
		kvs[i] = keyValueOf(kv)
	}
	return kvs
}

// PrefixEnd returns the end of the range of all keys that begin with prefix.
func PrefixEnd(prefix string) string { return clientv3.GetPrefixRangeEnd(prefix) }

// RangeRequest asks for one key, or for all from key to end.
type RangeRequest struct {
	Key, End  string
	Limit     int64
	Revision  int64 // 0: the latest
	KeysOnly  bool
	CountOnly bool
}

type rangeResponse struct {
	Revision int64
	KVs      []KeyValue
	more     bool
	Count    int64
}

// Op is one request inside a transaction.
type Op = clientv3.Op

// GetOp reads a key.
func GetOp(key string) Op { return clientv3.OpGet(key) }

// RangeOp reads what r asks for.
func RangeOp(r RangeRequest) Op {
	options := []clientv3.OpOption{clientv3.WithLimit(r.Limit), clientv3.WithRev(r.Revision)}
	if r.End != "" {
		options = append(options, clientv3.WithRange(r.End))
	}
	if r.KeysOnly {
		options = append(options, clientv3.WithKeysOnly())
	}
	if r.CountOnly {
		options = append(options, clientv3.WithCountOnly())
	}
	return clientv3.OpGet(r.Key, options...)
}

// PutOp writes a key, on a lease; 0 is none.
func PutOp(key string, value []byte, lease int64) Op {
	return clientv3.OpPut(key, string(value), clientv3.WithLease(clientv3.LeaseID(lease)))
}

// DeleteOp deletes the keys from key to end, or one if end is "".
func DeleteOp(key, end string) Op {
	if end == "" {
		return clientv3.OpDelete(key)
	}
	return clientv3.OpDelete(key, clientv3.WithRange(end))
}

// Condition is a condition of a transaction.
type Condition = clientv3.Cmp

// Unchanged holds if key was last modified at revision; revision 0 is a missing key.
func Unchanged(key string, revision int64) Condition {
	return clientv3.Compare(clientv3.ModRevision(key), "=", revision)
}

// CreatedAt holds if key exists and was created at that revision.
func CreatedAt(key string, revision int64) Condition {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", revision)
}

// Below holds if key exists with a value that comes before the given one, byte by
// byte.
func Below(key string, value []byte) Condition {
	return clientv3.Compare(clientv3.Value(key), "<", string(value))
}

// TxnRequest is a transaction: either branch, depending on all conditions.
type TxnRequest struct {
	Conditions []Condition
	Success    []Op
	Failure    []Op
}

// TxnResponse is what a transaction came to.
type TxnResponse struct {
	Revision  int64
	Succeeded bool
	results   []opResult // of the branch that was taken
}

type opResult struct {
	kvs   []KeyValue
	Count int64
}

// First returns the first key found; ok is false if there is none.
func (o opResult) First() (kv KeyValue, ok bool) {
	if len(o.kvs) == 0 {
		return KeyValue{}, false
	}
	return o.kvs[0], true
}

// Result returns the i-th result; an empty one if the server sent too few.
func (t TxnResponse) Result(i int) opResult {
	if i >= len(t.results) {
		return opResult{}
	}
	return t.results[i]
}

func txnResponseOf(r *clientv3.TxnResponse) TxnResponse {
	t := TxnResponse{Revision: r.Header.GetRevision(), Succeeded: r.Succeeded}
	for _, one := range r.Responses {
		found := one.GetResponseRange()
		t.results = append(t.results, opResult{kvs: keyValuesOf(found.GetKvs()), Count: found.GetCount()})
	}
	return t
}

// WatchRequest asks for all changes of keys from key to end, or of one key, from
// revision on.
type WatchRequest struct {
	Key, End string
	Revision int64
}

func (w WatchRequest) encode() *pb.WatchRequest {
	create := &pb.WatchCreateRequest{Key: []byte(w.Key), RangeEnd: []byte(w.End), StartRevision: w.Revision}
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}
}

// Event is one change of a key.
type Event struct {
	Deleted bool
	KV      KeyValue // of a deletion only key and modified
}

// maxResponse bounds an answer. Large ones are whole pages of large values.
const maxResponse = math.MaxInt32

// MaxOps is how many operations etcd takes in one transaction by default
// (max-txn-ops is 128); a caller may add some of its own.
const MaxOps = 120
