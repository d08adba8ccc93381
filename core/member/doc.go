// Package member is one node's side of a rendezvous, which an agent calls. It joins rounds, waits
// for them and reports what it waits for, tells when the nodes have to regroup, gives the agents
// of a round a store for their own keys, and leaves cleanly.
//
// It reaches the machine of its run (core/rendezvous) by a ControlPlane: a connection to
// the server that has it (core/control/client).
package member
