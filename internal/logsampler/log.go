// Package logsampler bounds what is logged about refused input, however often it comes
// and from however many peers.
package logsampler

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Limits of a Sampler.
const (
	// Window is how often the refusals that were not logged are summed up.
	Window = time.Minute
	// MaxAtOnce bounds, for each reason and window, the refusals that are logged
	// at once: the first of each peer.
	MaxAtOnce = 10
	// maxKnown bounds the peers that are remembered for each reason. Others are
	// only counted while there are so many.
	maxKnown = 256
)

// Sampler decides which refusals are logged. A peer's first one for a reason is; its later ones
// are summed up once a Window, in one line for each reason. So a reason costs at most MaxAtOnce+1
// lines in a Window, and the lines and the counts in them add up to all refusals. While nothing is
// refused nothing runs. The methods may be called by several goroutines at once.
type Sampler struct {
	after func(time.Duration, func()) (stop func() bool)
	write func(Summary)

	mu       sync.Mutex
	closed   bool
	stop     func() bool // ends the wait for the window's end; nil: no window is open
	accounts map[string]*account
	ends     sync.WaitGroup // of windows
}

// Summary is what was refused for one reason and not logged at once.
type Summary struct {
	Reason string
	Count  int
	Last   string // the peer of the last one
}

// account is what is known of one reason.
type account struct {
	known  map[string]bool // peers that were logged; true: refused in this window
	atOnce int             // logged in this window
	count  int             // not logged in this window
	last   string
}

// New returns a Sampler. It calls write, in a goroutine of its own or of the clock's,
// for each summary; after is time.AfterFunc or a test's. It must be closed.
func New(after func(time.Duration, func()) (stop func() bool), write func(Summary)) *Sampler {
	return &Sampler{after: after, write: write, accounts: map[string]*account{}}
}

// Note counts a refusal and reports whether the caller should log it; if not, a summary will
// mention it. Reasons are few; a peer is a host, and anything else that identifies it.
func (sa *Sampler) Note(reason, peer string) bool {
	sa.mu.Lock()
	defer sa.mu.Unlock()
	if sa.closed {
		return true // no goroutine would sum up
	}
	if sa.stop == nil {
		sa.openLocked()
	}
	a := sa.accounts[reason]
	if a == nil {
		a = &account{known: map[string]bool{}}
		sa.accounts[reason] = a
	}
	_, known := a.known[peer]
	if !known && a.atOnce < MaxAtOnce && len(a.known) < maxKnown {
		a.atOnce++
		a.known[peer] = true
		return true
	}
	if known {
		a.known[peer] = true
	}
	a.count++
	a.last = peer
	return false
}

func (sa *Sampler) openLocked() {
	sa.ends.Add(1)
	sa.stop = sa.after(Window, sa.end)
}

// end is the end of a window. Another one follows as long as something is refused.
func (sa *Sampler) end() {
	defer sa.ends.Done()
	sa.mu.Lock()
	if sa.closed {
		sa.mu.Unlock()
		return
	}
	sums := sa.sumLocked()
	sa.stop = nil
	if len(sa.accounts) > 0 {
		sa.openLocked()
	}
	sa.mu.Unlock()
	sa.tell(sums)
}

// sumLocked empties the accounts and forgets the peers that were not refused in this
// window, and the reasons without peers.
func (sa *Sampler) sumLocked() (sums []Summary) {
	for _, reason := range slices.Sorted(maps.Keys(sa.accounts)) {
		a := sa.accounts[reason]
		if a.count > 0 {
			sums = append(sums, Summary{reason, a.count, a.last})
		}
		maps.DeleteFunc(a.known, func(_ string, refused bool) bool { return !refused })
		for peer := range a.known {
			a.known[peer] = false
		}
		a.atOnce, a.count, a.last = 0, 0, ""
		if len(a.known) == 0 {
			delete(sa.accounts, reason)
		}
	}
	return sums
}

func (sa *Sampler) tell(sums []Summary) {
	for _, s := range sums {
		sa.write(s)
	}
}

// Close writes the summaries that are due and returns when nothing runs any more.
// The caller logs refusals that it notes afterwards.
func (sa *Sampler) Close() {
	sa.mu.Lock()
	if sa.closed {
		sa.mu.Unlock()
		sa.ends.Wait()
		return
	}
	sa.closed = true
	if sa.stop != nil && sa.stop() {
		sa.ends.Done()
	}
	sums := sa.sumLocked()
	sa.mu.Unlock()
	sa.ends.Wait()
	sa.tell(sums)
}
