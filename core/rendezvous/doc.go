// Package rendezvous agrees on who takes part in a distributed job.
//
// [Machine] is the heart: one pure state machine per run, without clock,
// goroutine or I/O. Its driver (the hosted server, a shared log) feeds it events in
// one order and carries out the effects it returns; the twelve guarantees of
// docs/design.md are properties of this machine alone.
//
// One node's side, with the calls that an agent needs, is package core/member.
package rendezvous
