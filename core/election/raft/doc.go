// Package raft elects the leader of a run among processes, and keeps the one value that each leader
// passes to the next: the facts. Terms, votes, the log, changes of voters, and the majority are those of
// go.etcd.io/raft; this package decides when a process campaigns, and what counts as a leader that may
// speak (docs/decisions/0151).
//
// A group of voters lives within a cluster, which whoever begins it names. No message of one cluster
// means anything in another, so that a process that goes from one to the next brings no vote along.
//
// The package is pure: each call gets the time, which must not go back, and Messages returns what to send.
package raft
