// Package client is a node's side of a hosted control plane (docs/protocol.md). A
// Client is a member.ControlPlane: it resolves the endpoint, connects to the control
// plane or starts one in this process where the endpoint is this machine, and keeps the
// connection until Close. Ask and DialHTTP are an administrator's.
//
// The package does not know the server: StartHost starts one.
//
// Locks, outermost first: Client.connecting, Client.mu, wire.Outbox.mu; clientConn.mu is a
// leaf.
package client
