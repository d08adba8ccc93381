// Package etcdregister is the register of a run's leader in an etcd ([register.Register]): one key under a
// transaction, behind the prefix and the run id, which all nodes watch. Register.mu is a leaf.
package etcdregister

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"rallypoint/core/election/register"
	"rallypoint/internal/etcdclient"
)

// keyLeader is the key of the record, under that of the run.
const keyLeader = "leader"

// leaseAfter is for how long a leader writes before its key gets a lease: a job's start waits for none.
const leaseAfter = 2 * time.Second

// renewParts is in which part of its time a lease is renewed.
const renewParts = 3

// Register is the register of one run, for one process.
type Register struct {
	client *etcdclient.Client
	config etcdclient.Config
	key    string

	mu       sync.Mutex
	revision int64 // the latest that is known
	found    int64 // the lease of the value that was read last
	wrote    time.Time
	lease    int64 // of the values that this process writes; 0: none yet
	renewed  time.Time
}

var (
	_ register.Watcher = (*Register)(nil)
	_ register.Clocked = (*Register)(nil)
)

// New makes the register of a run. It checks the configuration and touches no network.
func New(config etcdclient.Config, runID string) (*Register, error) {
	if config.TTL <= 0 {
		config.TTL = etcdclient.DefaultTTL
	}
	c, err := etcdclient.New(config)
	if err != nil {
		return nil, err
	}
	return &Register{client: c, config: config, key: keyOf(config, runID)}, nil
}

func keyOf(config etcdclient.Config, runID string) string {
	return config.Prefix + "/" + url.PathEscape(runID) + "/" + keyLeader
}

// Close ends the connection to the etcd.
func (r *Register) Close() { r.client.Close() }

// Addresses returns both ends of the connection to the etcd; "" before the first call.
func (r *Register) Addresses() (local, remote string) { return r.client.Addresses() }

// GetState implements register.Register.
func (r *Register) GetState(ctx context.Context) (state, token []byte, err error) {
	got, err := r.client.Get(ctx, "reading who leads the run", r.key)
	if err != nil {
		return nil, nil, err
	}
	state, token = r.saw(etcdclient.First(got.Kvs), got.Header.Revision)
	return state, token, nil
}

// saw notes what was found at a revision; nil: nothing.
func (r *Register) saw(kv *mvccpb.KeyValue, revision int64) (state, token []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revision, r.found = max(r.revision, revision), kv.GetLease()
	if kv == nil {
		return nil, nil
	}
	return kv.Value, tokenOf(kv.ModRevision)
}

func tokenOf(revision int64) []byte { return strconv.AppendInt(nil, revision, 10) }

// SetState implements register.Register.
func (r *Register) SetState(ctx context.Context, state, token []byte) (now, nowToken []byte, ok bool, err error) {
	lease, err := r.keptLease(ctx)
	if err != nil {
		return nil, nil, false, err
	}
	now, nowToken, ok, err = r.set(ctx, etcdclient.Put(r.key, state, lease), state, token)
	if errors.Is(err, etcdclient.ErrLeaseGone) {
		r.mu.Lock()
		r.lease = 0
		r.mu.Unlock()
		return r.set(ctx, etcdclient.Put(r.key, state, 0), state, token)
	}
	return now, nowToken, ok, err
}

// SetFor implements register.Clocked.
func (r *Register) SetFor(ctx context.Context, state, token []byte, after time.Duration) (now, nowToken []byte, ok bool, err error) {
	if after <= 0 {
		return r.set(ctx, clientv3.OpDelete(r.key), nil, token)
	}
	lease, err := r.client.Grant(ctx, after)
	if err != nil {
		return nil, nil, false, err
	}
	return r.set(ctx, etcdclient.Put(r.key, state, lease), state, token)
}

// set makes a change if the token is that of the stored value.
func (r *Register) set(ctx context.Context, change clientv3.Op, state, token []byte) (now, nowToken []byte, ok bool, err error) {
	revision := int64(0)
	if token != nil {
		if revision, err = strconv.ParseInt(string(token), 10, 64); err != nil {
			return nil, nil, false, err
		}
	}
	done, err := r.client.Txn(ctx, "writing who leads the run", etcdclient.Txn{
		If:   []clientv3.Cmp{etcdclient.Unchanged(r.key, revision)},
		Then: []clientv3.Op{change}, Else: []clientv3.Op{clientv3.OpGet(r.key)},
	})
	if err != nil {
		return nil, nil, false, err
	}
	if done.Succeeded {
		r.mu.Lock()
		r.revision = max(r.revision, done.Header.Revision)
		r.mu.Unlock()
		return state, tokenOf(done.Header.Revision), true, nil
	}
	now, nowToken = r.saw(etcdclient.Found(done, 0), done.Header.Revision)
	return now, nowToken, false, nil
}

// keptLease returns the lease of this process's values, so that etcd is as before some time after the last
// leader; 0 in its first moments.
func (r *Register) keptLease(ctx context.Context) (int64, error) {
	r.mu.Lock()
	lease, first, renewed := r.lease, r.wrote, r.renewed
	if first.IsZero() {
		r.wrote = time.Now()
	}
	r.mu.Unlock()
	var err error
	switch {
	case lease == 0 && (first.IsZero() || time.Since(first) < leaseAfter), lease != 0 && time.Since(renewed) < r.config.TTL/renewParts:
		return lease, nil
	case lease != 0:
		if err = r.client.KeepAlive(ctx, lease); !errors.Is(err, etcdclient.ErrLeaseGone) {
			break
		}
		fallthrough
	default:
		lease, err = r.client.Grant(ctx, r.config.TTL)
	}
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	r.lease, r.renewed = lease, time.Now()
	r.mu.Unlock()
	return lease, nil
}

// Age implements register.Clocked by the lease of the value.
func (r *Register) Age(ctx context.Context) (time.Duration, error) {
	r.mu.Lock()
	lease := r.found
	r.mu.Unlock()
	if lease == 0 {
		return 0, nil
	}
	age, err := r.client.LeaseAge(ctx, lease)
	if errors.Is(err, etcdclient.ErrLeaseGone) {
		return r.config.TTL, nil
	}
	return age, err
}

// Watch implements register.Watcher.
func (r *Register) Watch(ctx context.Context, changed func(state, token []byte)) error {
	r.mu.Lock()
	from := r.revision
	r.mu.Unlock()
	if from > 0 {
		from++
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := r.client.Watch(ctx, &pb.WatchCreateRequest{Key: []byte(r.key), StartRevision: from})
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		events, err := w.Next()
		if errors.Is(err, etcdclient.ErrCompacted) {
			if state, token, err := r.GetState(ctx); err == nil {
				changed(state, token) // the next watch begins there
			}
		}
		if err != nil {
			return err
		}
		for _, e := range events {
			at := e.Kv.ModRevision
			if r.isOld(at) {
				continue
			}
			if e.Type == mvccpb.DELETE {
				e.Kv = nil
			}
			changed(r.saw(e.Kv, at))
		}
	}
}

func (r *Register) isOld(revision int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return revision < r.revision
}

// Runs returns the ids of the runs that have a record under a configuration's prefix. It asks once for
// each name there, not for all keys: other programs may keep many.
func Runs(ctx context.Context, config etcdclient.Config) (ids []string, err error) {
	c, err := etcdclient.New(config)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	prefix := config.Prefix + "/"
	for from := prefix; ; {
		r, err := c.Get(ctx, "looking for runs", from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(1), clientv3.WithKeysOnly())
		if err != nil {
			return nil, err
		}
		if len(r.Kvs) == 0 {
			return ids, nil
		}
		key := string(r.Kvs[0].Key)
		name, rest, below := strings.Cut(strings.TrimPrefix(key, prefix), "/")
		if id, err := url.PathUnescape(name); below && err == nil && id != "" && rest == keyLeader {
			ids = append(ids, id)
		}
		if from = key + "\x00"; below && rest >= keyLeader {
			from = clientv3.GetPrefixRangeEnd(prefix + name + "/")
		}
	}
}
