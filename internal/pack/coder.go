package pack

import "time"

// Coder writes the values of a record, or reads them: a record has one list of its fields, in their order.
// Its methods are those of a Packer and of an Unpacker.
type Coder struct {
	Out *Packer   // nil: it reads
	In  *Unpacker // nil: it writes
}

// Code writes a value, or reads it.
func Code[T any](c Coder, v *T, write func(*Packer, T), read func(*Unpacker) T) {
	if c.Out != nil {
		write(c.Out, *v)
	} else {
		*v = read(c.In)
	}
}

// CodeList codes a list of at most so many of what; each codes one of them.
func CodeList[T any](c Coder, list *[]T, most int, what string, each func(*T)) {
	if c.Out == nil {
		*list = ListOf(c.In, most, what, func() (v T) { each(&v); return v })
		return
	}
	c.Out.Fit(len(*list), most, what)
	c.Out.List(len(*list))
	for i := range *list {
		each(&(*list)[i])
	}
}

func (c Coder) Uint(v *uint64)            { Code(c, v, (*Packer).Uint, (*Unpacker).Uint) }
func (c Coder) Int(v *int)                { Code(c, v, (*Packer).Int, (*Unpacker).Int) }
func (c Coder) Int64(v *int64)            { Code(c, v, (*Packer).Int64, (*Unpacker).Int64) }
func (c Coder) Bool(v *bool)              { Code(c, v, (*Packer).Bool, (*Unpacker).Bool) }
func (c Coder) Time(v *time.Time)         { Code(c, v, (*Packer).Time, (*Unpacker).Time) }
func (c Coder) Duration(v *time.Duration) { Code(c, v, (*Packer).Duration, (*Unpacker).Duration) }

func (c Coder) IntOr(v *int, missing int) {
	Code(c, v, (*Packer).Int, func(u *Unpacker) int { return u.IntOr(missing) })
}

func (c Coder) Text(v *string, most int) {
	Code(c, v, (*Packer).Text, func(u *Unpacker) string { return u.Text(most) })
}

func (c Coder) Cut(v *string, most int) {
	Code(c, v, func(p *Packer, text string) { p.Cut(text, most) }, func(u *Unpacker) string { return u.Text(most) })
}

func (c Coder) Texts(v *[]string, count, most int) {
	Code(c, v, (*Packer).Texts, func(u *Unpacker) []string { return u.Texts(count, most) })
}

func (c Coder) Values(v *[][]byte, count, most int) {
	Code(c, v, (*Packer).Values, func(u *Unpacker) [][]byte { return u.Values(count, most) })
}

// Open begins a list of so many values, and Close ends it.
func (c Coder) Open(values int) { c.Maybe(true, values) }

// Maybe begins a list that may be none, and reports whether there is one: as is says where it writes. Close ends
// it, also if there is none.
func (c Coder) Maybe(is bool, values int) bool {
	switch {
	case c.In != nil:
		return c.In.Open() > 0
	case is:
		c.Out.List(values)
	default:
		c.Out.None()
	}
	return is
}

func (c Coder) Close() {
	if c.In != nil {
		c.In.Close()
	}
}
