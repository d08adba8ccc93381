// Package backend opens a node of a run by its endpoint: the place where the
// nodes meet, which the endpoint's scheme tells apart.
//
//	host[:port]          a control plane that a node, or rallypoint serve, hosts
//	file:///shared/dir   the control plane whose leader a file names, in a directory that all nodes share
//	etcd://host[:port]   the same, by a key of an etcd (etcds:// with TLS)
//	static://host:port   a control plane that node 0 of a fixed set of nodes hosts, beside the store
//
// and, with [OpenRegister], a register that the caller can compare and set.
package backend
