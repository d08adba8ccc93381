// Package succession says what proves that the host of a job's control plane is dead, and which standby acts on
// it where nobody votes. It is pure: evidence in, decision out (docs/decisions/0040). Voters campaign on the same
// proof (core/control/standby), and core/election/raft elects.
//
// A standby acts only if the host's death is proven: the host's side ended the
// established connection, and fresh dials to the same address were refused. Silence proves
// nothing, a dial that times out or finds no route proves nothing either. Another standby
// that says that its own connection to the host stands holds it up.
package succession
