// Package sharedlog lets the nodes of a run agree without a control plane of
// ours: a [Replica] whose nodes all apply the same totally ordered [Log] of events
// into a machine of their own.
//
// A node's requests are appended to the log and answered when their entry is applied. Effects for
// other nodes are left to those nodes. No node's clock decides for others: a timer that runs out,
// a lease that ends and a broken connection are entries, too. The first node that notices appends
// the entry, and applying it twice changes nothing. Each observer judges a lease by its own
// monotonic time since it last saw the node's heartbeat change.
//
// The log is the memory of a job of one node ([NewLocalLog]).
package sharedlog
