// Package etcdstore uses an etcd (3.4 or newer, its v3 API): a [store.Store] in it
// ([Open]), a log for the rendezvous of a run ([NewLog]), and a local etcd for
// tests and for jobs of one node ([StartServer]).
//
// It speaks to etcd by etcd's own client; what of it is used, and what not, is in
// docs/decisions/0011.
package etcdstore
