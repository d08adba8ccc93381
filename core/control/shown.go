package control

import "rallypoint/core/rendezvous"

// shown makes what a control plane says to people fit for their terminals and logs,
// whoever made it say that.
func shown(f frame) frame {
	switch f := f.(type) {
	case welcome:
		f.Notice.Reason = rendezvous.Printable(f.Notice.Reason)
		return f
	case notice:
		f.Notice.Reason = rendezvous.Printable(f.Notice.Reason)
		return f
	case progress:
		f.Progress.Headline, f.Progress.Detail = rendezvous.Printable(f.Progress.Headline), rendezvous.Printable(f.Progress.Detail)
		return f
	case refuse:
		return refuse{shownError(f.Err)}
	case drop:
		return drop{shownError(f.Err)}
	case reply:
		f.Err = shownError(f.Err)
		return f
	case adminAnswer:
		return adminAnswer{Err: shownError(f.Err), Done: rendezvous.Printable(f.Done)}
	}
	return f
}

func shownError(err *rendezvous.Error) *rendezvous.Error {
	if err == nil {
		return nil
	}
	return &rendezvous.Error{Code: err.Code, Text: rendezvous.PrintableLines(err.Text)}
}
