// Package client is a node's side of a hosted control plane (docs/protocol.md). A
// Client is a member.ControlPlane: it has package discovery find the control plane, or host
// it, and keeps the connection until Close. Ask and DialHTTP are an administrator's.
//
// Locks, outermost first: Client.connecting, Client.mu, wire.Outbox.mu; conn.mu is a leaf.
package client
