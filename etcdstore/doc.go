// Package etcdstore is a [store.Store] in an etcd (3.4 or newer, its v3 API).
package etcdstore
