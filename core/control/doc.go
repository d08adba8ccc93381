// Package control is the server of a hosted control plane: it drives one
// rendezvous.Machine per run and speaks the protocol of docs/protocol.md with the nodes,
// whose side is core/control/client. Code of both sides is in core/control/wire.
//
// Server accepts connections; a serverConn is one of them, from its first byte on. A run
// applies the events of its nodes under its lock and executes the machine's effects. A
// run whose machine panics is broken and harms no other.
//
// With a data directory every event first goes to the groupCommit, which stores the
// events of all runs and then has each run apply its own. Data is the open directory
// with the runs found in it, stored a run's share of it.
//
// A run's stats are what it knows of its past, metrics what the server counts. Status
// (docs/status.md) and /metrics (docs/metrics.md) are made of both; http.go serves them.
//
// Locks, outermost first: Server.mu, run.mu, wire.Outbox.mu. connTracker.mu,
// shutdownGate.mu and groupCommit.mu are leaves.
package control
