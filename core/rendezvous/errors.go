package rendezvous

import (
	"errors"
	"fmt"
)

// Code is the number of an error on the wire and in the C ABI. Numbers are
// append-only and spaced so that related ones can be added.
type Code int32

// The codes. Zero is success and never belongs to an error.
const (
	CodeInvalid    Code = 10 // an argument or option is malformed or contradicts another
	CodeMismatch   Code = 12 // this node and the run disagree on min, max, unit, segment or target, or run different commands
	CodeTenant     Code = 14 // the port serves another run
	CodeNodeInUse  Code = 16 // a live node already carries this node id
	CodeAuth       Code = 18 // one side could not prove that it knows the token
	CodeClosed     Code = 20 // the run is closed, or can no longer regroup
	CodeGraceful   Code = 22 // the run ended well and never needed this node
	CodeUnfit      Code = 24 // this node is not fit to run workers, by its own word
	CodeTimeout    Code = 30 // a deadline passed
	CodeCanceled   Code = 32 // the caller withdrew
	CodeConnection Code = 40 // the control plane or a store cannot be reached
	CodeState      Code = 50 // what came back is not ours or not valid
	CodeFenced     Code = 52 // another process has written the checkpoint since this one loaded it
	CodeEvicted    Code = 60 // this node was dropped from the run
	CodeRoundOver  Code = 62 // the round of this store is over
	CodeNumber     Code = 70 // add on a value that is not a number
	CodeTooLarge   Code = 72 // a key, value or quota limit
	CodeEmpty      Code = 74 // pop from an empty queue
	CodeInternal   Code = 90 // a defect of ours
)

// Error is an error with its code. Two errors are the same to errors.Is if their
// codes are equal, so that the sentinels below match whatever the text says.
type Error struct {
	Code Code
	Text string
}

func (e *Error) Error() string { return e.Text }

// Is reports whether target is an Error with the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// The sentinels, one a code, for errors.Is.
var (
	ErrInvalid    = &Error{CodeInvalid, "invalid argument"}
	ErrMismatch   = &Error{CodeMismatch, "settings differ from the run's"}
	ErrTenant     = &Error{CodeTenant, "the port serves another run"}
	ErrNodeInUse  = &Error{CodeNodeInUse, "the node id is in use"}
	ErrAuth       = &Error{CodeAuth, "authentication failed"}
	ErrClosed     = &Error{CodeClosed, "the rendezvous is closed"}
	ErrGraceful   = &Error{CodeGraceful, "the run ended without needing this node"}
	ErrUnfit      = &Error{CodeUnfit, "this node is not fit to run workers"}
	ErrTimeout    = &Error{CodeTimeout, "timed out"}
	ErrCanceled   = &Error{CodeCanceled, "canceled"}
	ErrConnection = &Error{CodeConnection, "cannot reach the control plane"}
	ErrState      = &Error{CodeState, "invalid rendezvous state"}
	ErrFenced     = &Error{CodeFenced, "the checkpoint was written by another process"}
	ErrEvicted    = &Error{CodeEvicted, "this node was dropped from the run"}
	ErrRoundOver  = &Error{CodeRoundOver, "the round is over"}
	ErrNumber     = &Error{CodeNumber, "the value is not a number"}
	ErrTooLarge   = &Error{CodeTooLarge, "too large"}
	ErrEmpty      = &Error{CodeEmpty, "the queue is empty"}
	ErrInternal   = &Error{CodeInternal, "internal error"}
)

// Errorf makes an error with a code; the text follows fmt.Sprintf.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{code, fmt.Sprintf(format, args...)}
}

// CodeOf returns the code that err carries, CodeInternal if it carries none, and
// 0 for nil.
func CodeOf(err error) Code {
	if err == nil {
		return 0
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}

// Retryable reports whether the same call may succeed later without a change by
// the user: only a connection can come back by itself.
func (c Code) Retryable() bool { return c == CodeConnection || c == CodeEvicted }
