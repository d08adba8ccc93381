// Package sharedlog lets the nodes of a run agree without a control plane of
// ours: a [Plane] whose nodes all fold the same totally ordered [Log] of events
// into a machine of their own.
//
// A node's requests are appended to the log and answered when their entry is
// folded; what the machine has for other nodes is theirs to fold. Nobody's clock
// decides for others: a timer that runs out, a lease that ends and a broken
// connection are entries, too, appended by whoever notices first, and applying one
// twice changes nothing. A lease is judged by each observer's own monotonic time
// since it last saw the node's beat change.
//
// The logs are a file under a lock (filestore), the revisions of an etcd
// (etcdstore), and a blob that can be compared and set ([NewRegisterLog]).
package sharedlog
