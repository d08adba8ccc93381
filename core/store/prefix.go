package store

import (
	"context"
	"strings"
	"time"
)

// Prefix is a Store which keeps its keys in another one under a prefix: key k is
// prefix + "/" + k there. Several of them over one store do not see each other's
// keys unless one prefix continues another at a slash
// (docs/spec/tcpstore-wire.md 5).
//
// As in PyTorch, NumKeys counts the keys of the whole store below, whatever their prefix, and
// Barrier is the GenericBarrier, which meets those of PyTorch's PrefixStore. ListKeys returns
// the keys under the prefix, without it: PyTorch's compares the prefix without its slash and
// so also returns keys of longer prefixes; this one does not.
type Prefix struct {
	Methods

	store  Store
	prefix string // with the slash
}

var (
	_ Store = (*Prefix)(nil)
	_ Trier = (*Prefix)(nil)
)

// NewPrefix returns a view of s under prefix.
func NewPrefix(prefix string, s Store) *Prefix {
	p := &Prefix{store: s, prefix: prefix + "/"}
	p.Methods = MethodsOf(p)
	return p
}

// Do implements Doer.
func (p *Prefix) Do(ctx context.Context, r Request) (Reply, error) {
	if r.Op == OpBarrier {
		return Reply{}, GenericBarrier(ctx, p, r.Keys[0], r.Number)
	}
	reply, err := p.store.Do(ctx, p.below(r))
	return p.own(r, reply), err
}

// TryDo implements Trier, if the store below is one.
func (p *Prefix) TryDo(ctx context.Context, r Request, patience time.Duration) (Reply, Pending, error) {
	if r.Op == OpBarrier {
		return Reply{}, func(ctx context.Context) (Reply, error) { return p.Do(ctx, r) }, nil
	}
	reply, pending, err := TryDo(ctx, p.store, p.below(r), patience)
	if pending == nil {
		return p.own(r, reply), nil, err
	}
	return Reply{}, func(ctx context.Context) (Reply, error) {
		reply, err := pending(ctx)
		return p.own(r, reply), err
	}, nil
}

func (p *Prefix) below(r Request) Request {
	keys := make([]string, len(r.Keys))
	for i, key := range r.Keys {
		keys[i] = p.prefix + key
	}
	r.Keys = keys
	return r
}

// own returns the reply of the store below to r as one of this store.
func (p *Prefix) own(r Request, reply Reply) Reply {
	if r.Op != OpListKeys || reply.Keys == nil {
		return reply
	}
	keys := make([]string, 0, len(reply.Keys))
	for _, key := range reply.Keys {
		if rest, ok := strings.CutPrefix(key, p.prefix); ok {
			keys = append(keys, rest)
		}
	}
	reply.Keys = keys
	return reply
}

// Close closes the store below, and with it every other view of it.
func (p *Prefix) Close() error {
	return p.store.Close()
}
