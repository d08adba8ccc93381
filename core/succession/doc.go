// Package succession says what proves that the host of a job's control plane is dead, and which standby acts on
// it. It is pure: evidence in, decision out (docs/decisions/0040). Where nodes vote, to act is to campaign,
// and core/election/raft elects.
//
// A standby acts only if the host's death is proven: the host's side ended the
// established connection, fresh dials to the same address were refused, and no other
// standby says that its own connection to the host stands. Silence proves nothing, a dial
// that times out or finds no route proves nothing either.
package succession
