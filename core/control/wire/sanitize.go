package wire

import "rallypoint/core/rendezvous"

// sanitize makes the texts of a frame, which peers may have written, safe for terminals
// and logs.
func sanitize(f Frame) Frame {
	switch f := f.(type) {
	case Welcome:
		f.Notice, f.HostNode = sanitizeUpdate(f.Notice), rendezvous.Printable(f.HostNode)
		return f
	case Notice:
		f.Notice = sanitizeUpdate(f.Notice)
		return f
	case Progress:
		f.Progress.Headline, f.Progress.Detail = rendezvous.Printable(f.Progress.Headline), rendezvous.Printable(f.Progress.Detail)
		return f
	case Refuse:
		return Refuse{sanitizeError(f.Err)}
	case Drop:
		return Drop{sanitizeError(f.Err)}
	case Reply:
		f.Err = sanitizeError(f.Err)
		return f
	case AdminAnswer:
		return AdminAnswer{Err: sanitizeError(f.Err), Done: rendezvous.Printable(f.Done)}
	}
	return sanitizeSuccession(f)
}

func sanitizeUpdate(n rendezvous.MembershipUpdate) rendezvous.MembershipUpdate {
	n.Reason, n.Stop.Reason = rendezvous.Printable(n.Reason), rendezvous.Printable(n.Stop.Reason)
	n.Directive.ID, n.Directive.Text = rendezvous.Printable(n.Directive.ID), rendezvous.Printable(n.Directive.Text)
	return n
}

func sanitizeError(err *rendezvous.Error) *rendezvous.Error {
	if err == nil {
		return nil
	}
	return &rendezvous.Error{Code: err.Code, Text: rendezvous.PrintableLines(err.Text)}
}
