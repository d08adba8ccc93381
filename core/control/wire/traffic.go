package wire

import "sync/atomic"

// Traffic counts the frames and bytes of a process's connections. It only grows, and is safe for
// concurrent use.
type Traffic struct {
	BytesIn   atomic.Uint64
	BytesOut  atomic.Uint64
	FramesIn  kindCounts
	FramesOut kindCounts
}

// KindNames are the names of the kinds in metrics, by number; 0 stands for a kind that
// this version does not know.
var KindNames = [...]string{"unknown", "hello", "welcome", "refuse", "request", "reply", "notice", "progress", "drop", "beat", "goodbye", "admin", "admin_answer", "challenge", "proof",
	KindStandby: "standby", KindStandbys: "standbys", KindRedirect: "redirect", KindProbe: "probe", KindProbed: "probed", KindLiveness: "liveness", KindTransfer: "transfer",
	KindVote: "vote"}

// kindCounts counts frames by kind.
type kindCounts [len(KindNames)]atomic.Uint64

// Count counts a frame.
func (kc *kindCounts) Count(f Frame) { kc.add(f.kind()) }

func (kc *kindCounts) add(k Kind) {
	if k >= Kind(len(kc)) {
		k = 0
	}
	kc[k].Add(1)
}
