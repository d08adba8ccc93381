// Package succession says what proves that the host of a job's control plane is dead, and which standby acts on
// it. It is pure: evidence in, decision out (docs/decisions/0040). Where nodes vote, to act is to campaign,
// and core/election/raft elects.
//
// A standby acts only if the host's death is proven: the host's side ended the
// established connection, and fresh dials to the same address were refused. Silence proves
// nothing, a dial that times out or finds no route proves nothing either. A voter judges by its own
// connection alone, since those that still hear the host do not vote for it. Where nobody votes, another standby
// that says that its own connection to the host stands holds it up.
package succession
