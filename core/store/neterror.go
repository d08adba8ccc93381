package store

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// EndedByPeer reports whether err means that the other end has ended the connection: with unread
// data that shows as a reset. It is false for a connection that this side's kernel has given up or
// this side has closed.
func EndedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// PlainNetError returns an error of package net with a human-readable text: "connection
// refused" instead of "dial tcp 10.0.0.1:29500: connect: connection refused", since the
// callers say what was tried and at which address. It wraps err; other errors, and nil,
// come back as they are.
func PlainNetError(err error) error {
	var op *net.OpError
	if !errors.As(err, &op) {
		return err
	}
	var name *net.DNSError
	var number syscall.Errno
	switch {
	case errors.As(err, &name):
		return plainError{fmt.Sprintf("the name %.300q cannot be resolved: %s", name.Name, name.Err), err}
	case errors.As(err, &number):
		return plainError{number.Error(), err}
	case op.Timeout():
		return plainError{"no answer in time", err}
	case op.Err != nil:
		return plainError{op.Err.Error(), err}
	}
	return err
}

type plainError struct {
	text string
	err  error
}

func (e plainError) Error() string { return e.text }
func (e plainError) Unwrap() error { return e.err }
