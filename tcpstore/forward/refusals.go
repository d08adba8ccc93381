package forward

import "sync/atomic"

// refusal is why a connection was not carried.
type refusal int

const (
	refusedUser    refusal = iota // another user's process at this node's listener
	refusedPort                   // another node asks for a port that is none of those that are forwarded
	refusedProgram                // another node asks for a port whose program is another user's
	refusedEnded                  // it ended before its user was known
	refusals
)

var refusalNames = [refusals]string{"other_user", "other_port", "other_program", "incomplete"}

// Refusals counts the connections that the forwarders and Sides of one node have refused. A nil
// one counts nothing.
type Refusals struct{ counts [refusals]atomic.Uint64 }

func (r *Refusals) add(why refusal) {
	if r != nil {
		r.counts[why].Add(1)
	}
}

// Counts returns how many there were by reason; with a 0 for those that have not occurred.
func (r *Refusals) Counts() map[string]uint64 {
	counts := make(map[string]uint64, refusals)
	for why, name := range refusalNames {
		counts[name] = 0
		if r != nil {
			counts[name] = r.counts[why].Load()
		}
	}
	return counts
}
