// Package static holds the rendezvous of jobs whose nodes are known beforehand and
// agree on nothing: one node alone, and a static set of nodes. Both are what agent
// needs of a rendezvous.
package static
