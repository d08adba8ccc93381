// Package discovery finds the server that hosts the control plane of a node's run: at the
// endpoint, among the servers that succeed each other, or in this process. It makes this process
// host if the endpoint is this machine, or if the previous host is proven dead
// (docs/decisions/0019, 0040 to 0044). A [Finder] returns a [Conn] on which the server has
// welcomed the node, for package client to use. A [RegisterFinder] does the same where a register names
// the leader (core/election/register), and a [LocalFinder] for the only node of a job.
//
// The package does not know the server: [StartHost] starts one.
//
// seeker.mu and prober.mu are leaves.
package discovery
