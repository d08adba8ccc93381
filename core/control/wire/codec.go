package wire

import (
	"slices"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/pack"
)

type (
	packer   = pack.Packer
	unpacker = pack.Unpacker
)

// ErrMalformed is the cause of every decoding error.
var ErrMalformed = pack.ErrMalformed

// The machine's records are sent as it keeps them, except for texts, which are cut to the limits
// of a frame and made valid.

func packError(p *packer, err *rendezvous.Error) {
	if err != nil {
		err = &rendezvous.Error{Code: err.Code, Text: pack.CutText(err.Text, maxText)}
	}
	rendezvous.PackError(p, err)
}

func packNotice(p *packer, n rendezvous.MembershipUpdate) {
	n.Reason = pack.CutText(n.Reason, maxText)
	rendezvous.PackMembershipUpdate(p, n)
}

func packResult(p *packer, r rendezvous.Result) {
	switch v := r.(type) {
	case rendezvous.Outcome:
		v.Dropped = slices.Clone(v.Dropped[:min(len(v.Dropped), maxDropped)])
		for i, name := range v.Dropped {
			v.Dropped[i] = pack.CutText(name, maxText)
		}
		r = v
	case rendezvous.Withdrawn:
		v.Progress.Headline = pack.CutText(v.Progress.Headline, maxText)
		v.Progress.Detail = pack.CutText(v.Progress.Detail, maxText)
		r = v
	}
	rendezvous.PackResult(p, r)
}
