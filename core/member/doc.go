// Package member is one node's side of a rendezvous, what an agent calls: it joins
// rounds, waits for them and says what it waits for, tells when the nodes have to
// regroup, lends the agents of a round a store for their own keys, and leaves in order.
//
// It reaches the machine of its run (core/rendezvous) by a ControlPlane: a connection to
// a hosted one (core/control) or a replica over a shared log (core/sharedlog).
package member
