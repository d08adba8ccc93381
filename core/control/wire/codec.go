package wire

import (
	"slices"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
)

type (
	packer   = pack.Packer
	unpacker = pack.Unpacker
)

// ErrMalformed is the cause of every decoding error.
var ErrMalformed = pack.ErrMalformed

// coder writes the fields of a frame, or reads them. What peers say to be shown it makes fit for terminals and logs as
// it reads it; the machine does so with requests.
type coder struct{ pack.Coder }

func to(p *packer) coder     { return coder{pack.Coder{Out: p}} }
func from(u *unpacker) coder { return coder{pack.Coder{In: u}} }

func (c coder) error(v **rendezvous.Error) { pack.Code(c.Coder, v, packError, readError) }

// name is a text that stays as it is, and cut is name for a text that is cut when it is written.
func (c coder) name(v *string) { c.Text(v, MaxName) }
func (c coder) cut(v *string)  { c.Cut(v, MaxName) }

// shown is name, and said is cut, for texts that are shown.
func (c coder) shown(v *string) {
	if c.name(v); c.In != nil {
		*v = shown(*v, MaxName)
	}
}

func (c coder) said(v *string, most int) {
	if c.Cut(v, most); c.In != nil {
		*v = shown(*v, most)
	}
}

// names is a list of at most so many, and shownAll one of servers or nodes.
func (c coder) names(v *[]string, most int) { c.Texts(v, most, MaxName) }

func (c coder) shownAll(v *[]string) {
	if c.names(v, maxServers); c.In != nil {
		for i, text := range *v {
			(*v)[i] = shown(text, MaxName)
		}
	}
}

// shown makes a text fit to be shown, and no longer than it may be: what cannot be shown takes more bytes then.
func shown(text string, most int) string { return pack.CutText(printable.Text(text), most) }

// The machine's records are sent as it keeps them, except for texts, which are cut to the limits
// of a frame and made valid.

func packError(p *packer, err *rendezvous.Error) {
	if err != nil {
		err = &rendezvous.Error{Code: err.Code, Text: pack.CutText(err.Text, maxText)}
	}
	rendezvous.PackError(p, err)
}

func readError(u *unpacker) *rendezvous.Error {
	err := rendezvous.UnpackError(u)
	if err != nil {
		err.Text = printable.Lines(err.Text)
	}
	return err
}

func packNotice(p *packer, n rendezvous.MembershipUpdate) {
	n.Reason = pack.CutText(n.Reason, maxText)
	n.Code(pack.Coder{Out: p})
}

func readNotice(u *unpacker) (n rendezvous.MembershipUpdate) {
	n.Code(pack.Coder{In: u})
	d := &n.Directive
	n.Reason, n.Stop.Reason, d.Text = printable.Text(n.Reason), printable.Text(n.Stop.Reason), printable.Text(d.Text)
	d.ID, d.By, d.Reason = shown(d.ID, MaxName), shown(d.By, MaxName), shown(d.Reason, MaxName)
	return n
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
