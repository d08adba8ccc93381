// Package static holds the rendezvous of jobs whose nodes are known beforehand, so
// that there is nothing to agree on: one node alone, and a static set of nodes.
// Both are what core/agent needs of a rendezvous.
package static
