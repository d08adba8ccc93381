package main

// #include "glue.h"
import "C"

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
)

// signal is a flag that C can wait for, also with poll(2): once it was asked for,
// an eventfd is readable while the flag is set. The zero value is a flag that is
// not set.
type signal struct {
	mu     sync.Mutex
	on     bool
	closed bool
	fd     int           // 0: none; descriptor 0 is never one of ours
	wake   chan struct{} // of the waiters, closed by the next set or close; nil: there is none
}

// descriptor returns the eventfd, which belongs to the signal.
func (s *signal) descriptor() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, rendezvous.Errorf(codeHandle, "the handle was closed meanwhile")
	}
	if s.fd == 0 {
		fd, err := newEventFD()
		if err != nil {
			return 0, err
		}
		s.fd = fd
		if s.on {
			s.raise()
		}
	}
	return s.fd, nil
}

// newEventFD makes an eventfd that is not descriptor 0, even in a process that
// has closed its standard input.
func newEventFD() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil && fd == 0 {
		fd, err = unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 3)
		unix.Close(0)
	}
	if err != nil {
		return 0, fmt.Errorf("%wno descriptor can be made: %w", rendezvous.Errorf(rendezvous.CodeTooLarge, ""), err)
	}
	return fd, nil
}

func (s *signal) set() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on {
		s.on = true
		s.raise()
		s.wakeAll()
	}
}

// wait waits until the flag is set, for at most limit if it is limited, and clears
// it; errPending if it was not set in that time.
func (s *signal) wait(limit time.Duration, limited bool) error {
	var late <-chan time.Time
	if limited {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	for {
		wake, err := s.take()
		if wake == nil {
			return err
		}
		if limited && limit == 0 {
			return errPending
		}
		select {
		case <-wake:
		case <-late:
			return errPending
		}
	}
}

// take clears the flag if it is set. Else it returns a channel that is closed when
// it is worth trying again.
func (s *signal) take() (<-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, rendezvous.Errorf(rendezvous.CodeCanceled, "the handle was closed meanwhile")
	case !s.on:
		if s.wake == nil {
			s.wake = make(chan struct{})
		}
		return s.wake, nil
	}
	s.on = false
	if s.fd != 0 {
		var count [8]byte
		unix.Read(s.fd, count[:]) // sets it to 0; cannot block
	}
	return nil, nil
}

func (s *signal) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.wakeAll()
	if s.fd != 0 {
		unix.Close(s.fd)
		s.fd = 0
	}
}

func (s *signal) wakeAll() {
	if s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
}

func (s *signal) raise() {
	if s.fd != 0 {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		unix.Write(s.fd, one[:]) // from 0 to 1: cannot block
	}
}

func fillDescriptor(out *C.int32_t, s *signal) error {
	fd, err := s.descriptor()
	if err != nil {
		return err
	}
	*out = C.int32_t(fd)
	return nil
}
