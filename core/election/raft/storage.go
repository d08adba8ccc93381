package raft

// Storage is what the entries of a log come to, where that is more than the last of them. A node calls it one
// call at a time.
type Storage interface {
	// Save carries out a change. After an error the memory is lost.
	Save(Change) error
	// Snapshot returns all that was applied, for a voter that lacks entries.
	Snapshot() ([]byte, error)
}

// Change is what a node knows more than before.
type Change struct {
	Replace  bool     // first: a snapshot takes the place of all that was applied
	Snapshot []byte   // nil: nothing does
	Apply    [][]byte // then: entries, in order, each once
}

func (c *Change) empty() bool { return !c.Replace && len(c.Apply) == 0 }
