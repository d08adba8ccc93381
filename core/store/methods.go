package store

import "context"

// Methods are the methods of a Store from Set to Barrier, each as one Request to its Doer. Stores embed
// them.
type Methods struct{ doer Doer }

// MethodsOf returns the methods for d.
func MethodsOf(d Doer) Methods { return Methods{d} }

func (m Methods) Set(ctx context.Context, key string, value []byte) error {
	_, err := m.doer.Do(ctx, Request{Op: OpSet, Keys: []string{key}, Values: [][]byte{value}})
	return err
}

func (m Methods) Get(ctx context.Context, key string) ([]byte, error) {
	return m.value(ctx, Request{Op: OpGet, Keys: []string{key}})
}

func (m Methods) Add(ctx context.Context, key string, delta int64) (int64, error) {
	r, err := m.doer.Do(ctx, Request{Op: OpAdd, Keys: []string{key}, Number: delta})
	return r.Number, err
}

func (m Methods) CompareSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	return m.value(ctx, Request{Op: OpCompareSet, Keys: []string{key}, Values: [][]byte{expected, desired}})
}

func (m Methods) Append(ctx context.Context, key string, value []byte) error {
	_, err := m.doer.Do(ctx, Request{Op: OpAppend, Keys: []string{key}, Values: [][]byte{value}})
	return err
}

func (m Methods) Check(ctx context.Context, keys []string) (bool, error) {
	r, err := m.doer.Do(ctx, Request{Op: OpCheck, Keys: keys})
	return r.Ready, err
}

func (m Methods) Wait(ctx context.Context, keys []string) error {
	_, err := m.doer.Do(ctx, Request{Op: OpWait, Keys: keys})
	return err
}

func (m Methods) Delete(ctx context.Context, key string) (bool, error) {
	r, err := m.doer.Do(ctx, Request{Op: OpDelete, Keys: []string{key}})
	return r.Ready, err
}

func (m Methods) NumKeys(ctx context.Context) (int64, error) {
	r, err := m.doer.Do(ctx, Request{Op: OpNumKeys})
	return r.Number, err
}

func (m Methods) ListKeys(ctx context.Context) ([]string, error) {
	r, err := m.doer.Do(ctx, Request{Op: OpListKeys})
	return r.Keys, err
}

func (m Methods) MultiGet(ctx context.Context, keys []string) ([][]byte, error) {
	r, err := m.doer.Do(ctx, Request{Op: OpMultiGet, Keys: keys})
	return r.Values, err
}

func (m Methods) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	_, err := m.doer.Do(ctx, Request{Op: OpMultiSet, Keys: keys, Values: values})
	return err
}

func (m Methods) QueuePush(ctx context.Context, key string, value []byte) error {
	_, err := m.doer.Do(ctx, Request{Op: OpQueuePush, Keys: []string{key}, Values: [][]byte{value}})
	return err
}

func (m Methods) QueuePop(ctx context.Context, key string, block bool) ([]byte, error) {
	return m.value(ctx, Request{Op: OpQueuePop, Keys: []string{key}, Block: block})
}

func (m Methods) QueueLen(ctx context.Context, key string) (int64, error) {
	r, err := m.doer.Do(ctx, Request{Op: OpQueueLen, Keys: []string{key}})
	return r.Number, err
}

func (m Methods) Barrier(ctx context.Context, key string, worldSize int64) error {
	_, err := m.doer.Do(ctx, Request{Op: OpBarrier, Keys: []string{key}, Number: worldSize})
	return err
}

func (m Methods) value(ctx context.Context, r Request) ([]byte, error) {
	reply, err := m.doer.Do(ctx, r)
	if err != nil {
		return nil, err
	}
	return reply.Values[0], nil
}
