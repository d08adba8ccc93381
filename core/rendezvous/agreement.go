package rendezvous

// agreement is what the members of the running round have said of the directive that stands.
// The zero value is that none was asked, or that none stands.
type agreement struct {
	phase agreementPhase
	step  int64 // of those held so far, then what was agreed; -1: none reports steps
	held  ranks // that have reported a step
	saved ranks
}

type agreementPhase int

const (
	phaseWaiting agreementPhase = iota // not asked in this round
	phaseAsking                        // members hold their workers and say where
	phaseAgreed                        // the workers get it at step; final for the round
	phaseGivenUp                       // the round was about to end before all had answered
	agreementPhases
)

// ranks is a set of members of the round.
type ranks struct {
	has     []byte // one bit a rank
	running int    // how many of them run
}

func (r *ranks) contains(rank int) bool {
	return rank>>3 < len(r.has) && r.has[rank>>3]&(1<<(rank&7)) != 0
}

func (r *ranks) add(rank int) {
	if r.contains(rank) {
		return
	}
	if extra := rank>>3 + 1 - len(r.has); extra > 0 {
		r.has = append(r.has, make([]byte, extra)...)
	}
	r.has[rank>>3] |= 1 << (rank & 7)
	r.running++
}

// count keeps how many members of the set run, when one begins (1) or ceases (-1) to.
func (r *ranks) count(rank, by int) {
	if r.contains(rank) {
		r.running += by
	}
}

// count counts the reports of a member that begins (1) or ceases (-1) to run.
func (a *agreement) count(rank, by int) {
	a.held.count(rank, by)
	a.saved.count(rank, by)
}
