// Package succession decides who hosts the control plane of a job when its host has died or
// leaves. It is pure: evidence in, decision out (docs/decisions/0040).
//
// A standby takes over only if the host's death is proven: the host's side ended the
// established connection, fresh dials to the same address were refused, and no other
// standby says that its own connection to the host stands. Silence proves nothing, a dial
// that times out or finds no route proves nothing either.
package succession
