// Package rendezvous agrees on who takes part in a distributed job.
//
// [Machine] is the heart: one pure state machine per run, without clock,
// goroutine or I/O. Whoever drives it (the hosted server, a shared log) feeds it
// events in one order and carries out the effects it returns; the eleven promises
// of docs/design.md are properties of this machine alone.
//
// [Member] is one node's side: it speaks to the machine through a [Plane] and
// offers the calls an agent needs (next rendezvous, nodes waiting, closed,
// shutdown, the agents' small keys).
package rendezvous
