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

// coder writes the fields of a frame, or reads them: each frame has one list of them, in their order on the wire.
// What peers say to be shown it makes fit for terminals and logs as it reads it; the machine does so with requests.
type coder struct {
	out *packer   // nil: it reads
	in  *unpacker // nil: it writes
}

// code writes a value, or reads it.
func code[T any](c coder, v *T, write func(*packer, T), read func(*unpacker) T) {
	if c.out != nil {
		write(c.out, *v)
	} else {
		*v = read(c.in)
	}
}

func (c coder) uint(v *uint64)             { code(c, v, (*packer).Uint, (*unpacker).Uint) }
func (c coder) bool(v *bool)               { code(c, v, (*packer).Bool, (*unpacker).Bool) }
func (c coder) error(v **rendezvous.Error) { code(c, v, packError, readError) }

// name is a text that stays as it is, and cut is name for a text that is cut when it is written.
func (c coder) name(v *string) { code(c, v, (*packer).Text, readName) }
func (c coder) cut(v *string)  { code(c, v, cutName, readName) }

// shown is name, and said is cut, for texts that are shown.
func (c coder) shown(v *string) {
	if c.name(v); c.in != nil {
		*v = shown(*v, MaxName)
	}
}

func (c coder) said(v *string, most int) {
	code(c, v, func(p *packer, text string) { p.Cut(text, most) }, func(u *unpacker) string { return shown(u.Text(most), most) })
}

// names is a list of at most so many, and shownAll one of servers or nodes.
func (c coder) names(v *[]string, most int) {
	code(c, v, (*packer).Texts, func(u *unpacker) []string { return u.Texts(most, MaxName) })
}

func (c coder) shownAll(v *[]string) {
	if c.names(v, maxServers); c.in != nil {
		for i, text := range *v {
			(*v)[i] = shown(text, MaxName)
		}
	}
}

// open begins a list within the fields, of so many values, and close ends it.
func (c coder) open(values int) {
	if c.out != nil {
		c.out.List(values)
	} else {
		c.in.Open()
	}
}

func (c coder) close() {
	if c.in != nil {
		c.in.Close()
	}
}

func cutName(p *packer, text string) { p.Cut(text, MaxName) }
func readName(u *unpacker) string    { return u.Text(MaxName) }

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
	rendezvous.PackMembershipUpdate(p, n)
}

func readNotice(u *unpacker) rendezvous.MembershipUpdate {
	n := rendezvous.UnpackMembershipUpdate(u)
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
