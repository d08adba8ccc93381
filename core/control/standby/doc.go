// Package standby is what the processes of one job know of the servers that succeed each
// other: who hosts, in which term, who stands by, and what the standbys tell each other
// of the host (docs/decisions/0040, 0041). core/election/raft elects; this package keeps
// the state, and the liveness connections between standbys.
//
// A Group is one process's view, shared by its client and its server; Peers is that of a server of
// several that serve many runs (docs/decisions/0151). A Registry is the
// present host's list of standbys.
package standby
