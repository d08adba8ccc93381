// Package store has the common parts of all key-value stores: the Store interface, its operations
// as requests, its sentinel errors, the in-memory Engine with its waiters, and two stores built
// from them, Memory (an Engine behind a mutex) and Prefix.
//
// The semantics are those of PyTorch's TCPStore, docs/spec/tcpstore-wire.md
// sections 4 and 5.
package store
