package training

import (
	"fmt"

	"rallypoint/internal/pack"
)

// Waits is how much of its time a node's workers wait for other ranks. A slow rank waits least:
// the others wait for it.
type Waits struct {
	Known  bool
	Rank   int     // of the worker that waits least
	Least  float64 // the share of its time
	Second float64 // the share of the worker that waits least among the others; 1 if it is alone
}

// NewWaits tells of the workers from a rank on, in their order; without any, nothing is known.
func NewWaits(base int, shares []float64) Waits {
	w := Waits{Known: len(shares) > 0, Least: 1, Second: 1}
	if !w.Known {
		return Waits{}
	}
	for i, share := range shares {
		if share < w.Least || i == 0 {
			w.Rank, w.Least, w.Second = base+i, share, w.Least
		} else {
			w.Second = min(w.Second, share)
		}
	}
	return w
}

func (w *Waits) valid() bool {
	return !w.Known && *w == Waits{} || w.Rank >= 0 && w.Rank < maxWorkers && w.Least >= 0 && w.Least <= w.Second && w.Second <= 1
}

// inWhole is how shares are written: in thousandths.
const inWhole = 1000

func (w *Waits) pack(p *pack.Packer) {
	if !w.Known {
		p.List(0)
		return
	}
	p.List(3)
	p.Int(w.Rank)
	p.Int(int(w.Least*inWhole + 0.5))
	p.Int(int(w.Second*inWhole + 0.5))
}

func unpackWaits(u *pack.Unpacker) Waits {
	defer u.Close()
	if u.Open() == 0 {
		return Waits{}
	}
	return Waits{true, u.Int(), float64(u.Int()) / inWhole, float64(u.Int()) / inWhole}
}

// leastLoss is the share of its time that a job has to lose to one rank for that to be named. The
// shares of ranks that are equally fast differ by less (docs/decisions/0125).
const leastLoss = 0.08

// SlowRank is a rank for which all others wait.
type SlowRank struct {
	Index  int // of its node; -1: no rank is known to be slow
	Rank   int
	Waits  float64 // the share of its time
	Others float64 // the share that each other rank waits at least
}

// slowRank finds the rank that waits notably less than each other one. There is none unless the
// waits of all nodes are known.
func slowRank(nodes []NodeReport) SlowRank {
	s := SlowRank{Index: -1, Waits: 1, Others: 1}
	for i := range nodes {
		w := &nodes[i].Waits
		if !w.Known {
			return SlowRank{Index: -1}
		}
		if w.Least < s.Waits || s.Index < 0 {
			s = SlowRank{i, w.Rank, w.Least, min(s.Waits, w.Second)}
		} else {
			s.Others = min(s.Others, w.Least)
		}
	}
	if s.Others == 1 || s.Others-s.Waits < leastLoss { // 1: it is alone
		return SlowRank{Index: -1}
	}
	return s
}

// Text is the sentence about it in logs, status and page. node is the name of its node.
func (s SlowRank) Text(node string) string {
	return fmt.Sprintf("rank %d (%s) slows the job down: it waits for others %.0f %% of the time, each other rank at least %.0f %%", s.Rank, node, 100*s.Waits, 100*s.Others)
}
