// Package static holds the rendezvous of jobs whose nodes are known beforehand and
// agree on nothing: one node alone ([Standalone]), and a static set of nodes ([Static]).
// Both are what agent needs of a rendezvous. There is no control plane: no node is ever
// replaced, and none learns of one that is lost. Static.joining lets one Next run at a
// time; Static.mu and the lock of Standalone's directives are leaves.
package static
