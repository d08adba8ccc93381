// Package static holds the rendezvous of a static set of nodes ([Static]), which are known
// beforehand and agree on nothing. There is no control plane: no node is ever replaced, and
// none learns of one that is lost. Static.joining lets one Next run at a time; Static.mu is
// a leaf.
package static
