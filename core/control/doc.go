// Package control is the server of a hosted control plane: it drives one
// rendezvous.Machine per run and speaks the protocol of docs/protocol.md with the nodes,
// whose side is core/control/client. Code of both sides is in core/control/wire.
//
// A Server accepts connections, and a serverConn is one of them from its first byte on. A run
// applies the events of its nodes under its lock and executes the machine's effects. A run whose
// machine panics is broken, but does not affect others.
//
// With a data directory every event first goes to the groupCommit, which stores the
// events of all runs and then has each run apply its own. Data is the open directory
// with the runs found in it, stored a run's share of it.
//
// A run's stats are its past, and metrics are the server's counters. Both make up Status
// (docs/status.md) and /metrics (docs/metrics.md), which http.go serves.
//
// Locks, outermost first: Server.mu, run.mu, wire.Outbox.mu. shutdownGate.mu and groupCommit.mu are leaves.
package control
