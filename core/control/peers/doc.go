// Package peers is what a server of many runs does to succeed others, or to be succeeded: it keeps
// connections to the servers of its list, lets time pass for the vote, and does what that
// decides (docs/decisions/0151). core/election/raft elects, core/control/standby keeps the state.
//
// The package does not know the server: a [Host] does.
package peers
