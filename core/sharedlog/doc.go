// Package sharedlog lets the nodes of a run agree without a control plane of
// ours: a [Replica] whose nodes all apply the same totally ordered [Log] of events
// into a machine of their own.
//
// A node's requests are appended to the log and answered when their entry is
// applied; what the machine has for other nodes is theirs to apply. No node's clock
// decides for others: a timer that runs out, a lease that ends and a broken
// connection are entries, too, appended by the first node that notices, and applying one
// twice changes nothing. A lease is judged by each observer's own monotonic time
// since it last saw the node's beat change.
//
// The logs are a file under a lock (filestore/filelog), the revisions of an etcd
// (etcdstore/etcdlog), and a register with compare-and-set ([NewRegisterLog]).
package sharedlog
