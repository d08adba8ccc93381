package store

import (
	"context"
	"strings"
)

// Prefix is a Store which keeps its keys in another one under a prefix: key k is
// prefix + "/" + k there. Several of them over one store do not see each other's
// keys unless one prefix continues another at a slash
// (docs/spec/tcpstore-wire.md 5).
type Prefix struct {
	store  Store
	prefix string // with the slash
}

var _ Store = (*Prefix)(nil)

// NewPrefix returns a view of s under prefix.
func NewPrefix(prefix string, s Store) *Prefix {
	return &Prefix{store: s, prefix: prefix + "/"}
}

// Set implements Store.
func (p *Prefix) Set(ctx context.Context, key string, value []byte) error {
	return p.store.Set(ctx, p.prefix+key, value)
}

// Get implements Store.
func (p *Prefix) Get(ctx context.Context, key string) ([]byte, error) {
	return p.store.Get(ctx, p.prefix+key)
}

// Add implements Store.
func (p *Prefix) Add(ctx context.Context, key string, delta int64) (int64, error) {
	return p.store.Add(ctx, p.prefix+key, delta)
}

// CompareSet implements Store.
func (p *Prefix) CompareSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	return p.store.CompareSet(ctx, p.prefix+key, expected, desired)
}

// Append implements Store.
func (p *Prefix) Append(ctx context.Context, key string, value []byte) error {
	return p.store.Append(ctx, p.prefix+key, value)
}

// Check implements Store.
func (p *Prefix) Check(ctx context.Context, keys []string) (bool, error) {
	return p.store.Check(ctx, p.join(keys))
}

// Wait implements Store.
func (p *Prefix) Wait(ctx context.Context, keys []string) error {
	return p.store.Wait(ctx, p.join(keys))
}

// Delete implements Store.
func (p *Prefix) Delete(ctx context.Context, key string) (bool, error) {
	return p.store.Delete(ctx, p.prefix+key)
}

// NumKeys implements Store: as in PyTorch it counts the keys of the whole store
// below, whatever their prefix.
func (p *Prefix) NumKeys(ctx context.Context) (int64, error) {
	return p.store.NumKeys(ctx)
}

// ListKeys implements Store: it returns the keys under the prefix, without it.
// PyTorch's compares the prefix without its slash and so also returns keys of
// longer prefixes; this one does not.
func (p *Prefix) ListKeys(ctx context.Context) ([]string, error) {
	all, err := p.store.ListKeys(ctx)
	if err != nil {
		return nil, err
	}
	keys := make([]string, 0, len(all))
	for _, key := range all {
		if rest, ok := strings.CutPrefix(key, p.prefix); ok {
			keys = append(keys, rest)
		}
	}
	return keys, nil
}

// MultiGet implements Store.
func (p *Prefix) MultiGet(ctx context.Context, keys []string) ([][]byte, error) {
	return p.store.MultiGet(ctx, p.join(keys))
}

// MultiSet implements Store.
func (p *Prefix) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	return p.store.MultiSet(ctx, p.join(keys), values)
}

// QueuePush implements Store.
func (p *Prefix) QueuePush(ctx context.Context, key string, value []byte) error {
	return p.store.QueuePush(ctx, p.prefix+key, value)
}

// QueuePop implements Store.
func (p *Prefix) QueuePop(ctx context.Context, key string, block bool) ([]byte, error) {
	return p.store.QueuePop(ctx, p.prefix+key, block)
}

// QueueLen implements Store.
func (p *Prefix) QueueLen(ctx context.Context, key string) (int64, error) {
	return p.store.QueueLen(ctx, p.prefix+key)
}

// Barrier implements Store. It is the GenericBarrier, so that it meets the ones
// of PyTorch's PrefixStore.
func (p *Prefix) Barrier(ctx context.Context, key string, worldSize int64) error {
	return GenericBarrier(ctx, p, key, worldSize)
}

// Close closes the store below, and with it every other view of it.
func (p *Prefix) Close() error {
	return p.store.Close()
}

func (p *Prefix) join(keys []string) []string {
	joined := make([]string, len(keys))
	for i, key := range keys {
		joined[i] = p.prefix + key
	}
	return joined
}
