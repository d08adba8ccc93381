// Package control is the hosted control plane: a Server that drives one
// rendezvous.Machine per run, the wire protocol between it and the nodes
// (docs/protocol.md), and a Client which is a node's rendezvous.Plane and starts
// a Server in its own process where the endpoint is this machine.
//
// From the inside out: frame turns events, effects and errors into bytes
// with internal/pack; stream cuts a byte stream into frames; run applies events under its lock
// and carries out the effects; session.go and Server move bytes between sockets
// and runs. place decides who hosts, link is one connection of a Client.
//
// With a data directory an event goes to the writer first, which stores the
// events of all runs and then has each run apply its own; data opens the directory
// and takes up what is in it, stored is a run's share. A run whose machine panics
// is broken and harms no other.
//
// A run's chronicle is what it knows of its past, the server's meters what is
// counted; status (docs/status.md) and metrics (docs/metrics.md) are made of both
// and served by http. AdminClose and AdminEvict ask a server over its protocol.
//
// Locks, outermost first: Server.mu, run.mu, outbox.mu; Client.mu, outbox.mu.
// Server.idle.mu, Server.gate and writer.mu are leaves.
package control
