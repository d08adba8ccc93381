package succession

import "slices"

// MaxStandbys is the largest number of standbys.
const MaxStandbys = 5

// maxTerm bounds the terms that are believed: each host adds one to its predecessor's, so
// that a larger one is no term.
const maxTerm = 1 << 32

// Believable reports whether a term may be that of a host.
func Believable(term uint64) bool { return term >= 1 && term <= maxTerm }

// Candidate is a node that could be a standby.
type Candidate struct {
	Machine  string // the boot id of its kernel; "": unknown
	Loopback bool   // it reaches the host by a loopback address, which means nothing elsewhere
}

// Electors returns the places of the standbys that may vote beside the host, in order: where
// nodes of several machines take part one of each other machine than the host's, since a machine
// that dies takes all its votes along; all of them in a job of one machine. There are none below three
// machines: no majority is left when one of two is silent.
func Electors(standbys []Candidate, hostMachine string) (places []int) {
	var all, apart []int
	seen := []string{hostMachine}
	for i, c := range standbys {
		all = append(all, i)
		if c.Machine == "" || !slices.Contains(seen, c.Machine) {
			apart, seen = append(apart, i), append(seen, c.Machine)
		}
	}
	if len(apart) == 0 {
		apart = all
	}
	if len(apart) < 2 {
		return nil
	}
	return apart
}

// Choose returns the indices of the standbys, in the order of succession: the first ones to
// arrive, those on other machines than the host first. If nodes of other machines take part
// (spread), a node that can only be reached by loopback cannot be a standby.
func Choose(arrived []Candidate, hostMachine string, spread bool) []int {
	var elsewhere, beside []int
	for i, c := range arrived {
		switch {
		case c.Loopback && spread:
		case c.Machine != "" && c.Machine != hostMachine:
			elsewhere = append(elsewhere, i)
		default:
			beside = append(beside, i)
		}
		if len(elsewhere) == MaxStandbys {
			return elsewhere
		}
	}
	all := append(elsewhere, beside...)
	return all[:min(len(all), MaxStandbys)]
}
