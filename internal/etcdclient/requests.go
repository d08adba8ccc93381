package etcdclient

import (
	"math"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Put writes a key, on a lease; 0 is none.
func Put(key string, value []byte, lease int64) clientv3.Op {
	return clientv3.OpPut(key, string(value), clientv3.WithLease(clientv3.LeaseID(lease)))
}

// Unchanged holds if key was last modified at revision; revision 0 is a missing key.
func Unchanged(key string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", revision)
}

// CreatedAt holds if key exists and was created at that revision.
func CreatedAt(key string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", revision)
}

// Below holds if key exists with a value that comes before the given one, byte by
// byte.
func Below(key string, value []byte) clientv3.Cmp {
	return clientv3.Compare(clientv3.Value(key), "<", string(value))
}

// Txn is a transaction: either branch, depending on all conditions.
type Txn struct {
	If         []clientv3.Cmp
	Then, Else []clientv3.Op
}

// First returns the first key of a list, nil for an empty one: its getters return what a key has that
// is not there.
func First(kvs []*mvccpb.KeyValue) *mvccpb.KeyValue {
	if len(kvs) == 0 {
		return nil
	}
	return kvs[0]
}

// Found returns the first key that the i-th operation of a transaction found, nil if there is none.
func Found(r *clientv3.TxnResponse, i int) *mvccpb.KeyValue {
	if i >= len(r.Responses) {
		return nil
	}
	return First(r.Responses[i].GetResponseRange().GetKvs())
}

// maxResponse bounds an answer. Large ones are whole pages of large values.
const maxResponse = math.MaxInt32

// MaxOps is how many operations etcd takes in one transaction by default
// (max-txn-ops is 128); a caller may add some of its own.
const MaxOps = 120
