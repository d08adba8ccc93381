package wire

import (
	"rallypoint/core/rendezvous"
	"rallypoint/internal/printable"
)

// sanitize makes the texts of a frame, which peers may have written, safe for terminals
// and logs; the machine does so with those of a request.
func sanitize(f Frame) Frame {
	switch f.(type) {
	case Request, Beat:
		return f
	}
	return sanitizeOther(f)
}

func sanitizeOther(f Frame) Frame {
	switch f := f.(type) {
	case Welcome:
		f.Notice, f.HostNode = sanitizeUpdate(f.Notice), printable.Text(f.HostNode)
		f.SeenAddr, f.Addr, f.Servers = printable.Text(f.SeenAddr), printable.Text(f.Addr), sanitizeTexts(f.Servers)
		return f
	case Notice:
		f.Notice = sanitizeUpdate(f.Notice)
		return f
	case Progress:
		f.Progress.Headline, f.Progress.Detail = printable.Text(f.Progress.Headline), printable.Text(f.Progress.Detail)
		return f
	case Refuse:
		return Refuse{sanitizeError(f.Err), f.Group}
	case Drop:
		return Drop{sanitizeError(f.Err)}
	case Reply:
		f.Err = sanitizeError(f.Err)
		return f
	case AdminAnswer:
		return AdminAnswer{Err: sanitizeError(f.Err), Done: printable.Text(f.Done)}
	}
	return sanitizeSuccession(f)
}

func sanitizeTexts(list []string) []string {
	for i := range list {
		list[i] = printable.Text(list[i])
	}
	return list
}

func sanitizeUpdate(n rendezvous.MembershipUpdate) rendezvous.MembershipUpdate {
	n.Reason, n.Stop.Reason = printable.Text(n.Reason), printable.Text(n.Stop.Reason)
	d := &n.Directive
	d.ID, d.Text, d.By, d.Reason = printable.Text(d.ID), printable.Text(d.Text), printable.Text(d.By), printable.Text(d.Reason)
	return n
}

func sanitizeError(err *rendezvous.Error) *rendezvous.Error {
	if err == nil {
		return nil
	}
	return &rendezvous.Error{Code: err.Code, Text: printable.Lines(err.Text)}
}
