// Package discovery finds the server that hosts the control plane of a node's run: at the
// endpoint, among the servers that succeed each other, or in this process, which it makes
// host where the endpoint is this machine or the death of the host before is proven
// (docs/decisions/0019, 0040 to 0044). A [Finder] hands over a [Conn] on which the server has
// welcomed the node; what passes on it is package client's.
//
// The package does not know the server: [StartHost] starts one.
//
// Finder.mu and prober.mu are leaves.
package discovery
