// Package etcdstore is a [store.Store] in an etcd (3.4 or newer, its v3 API): [Store], made
// by [Open], for which every operation is applied exactly once. It is no register
// of who leads a run (package etcdregister), and repeats and explains calls by package etcdclient. Store.mu guards
// the idempotency slots, and is a leaf.
package etcdstore
