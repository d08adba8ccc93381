// Package pty makes pseudo-terminals.
package pty

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Open makes a pseudo-terminal of the size of another terminal. Bytes written to the second end
// are read from the first, unchanged.
func Open(like *os.File) (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	var number int
	err = Control(master, func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		number, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		return err
	})
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		_ = master.Close()
		return nil, nil, err
	}
	err = Control(slave, func(fd int) error {
		settings, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return err
		}
		settings.Oflag &^= unix.OPOST // the real terminal does that
		settings.Lflag &^= unix.ECHO
		return unix.IoctlSetTermios(fd, unix.TCSETS, settings)
	})
	if err != nil {
		_, _ = master.Close(), slave.Close()
		return nil, nil, err
	}
	_ = Control(slave, func(fd int) error { return Fit(fd, like) })
	return master, slave, nil
}

// Fit gives a pseudo-terminal the size of another terminal.
func Fit(pty int, like *os.File) error {
	return Control(like, func(fd int) error {
		size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err != nil {
			return err
		}
		return unix.IoctlSetWinsize(pty, unix.TIOCSWINSZ, size)
	})
}

// Control runs f on a file's descriptor without taking the file out of the poller.
func Control(file *os.File, f func(fd int) error) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := conn.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// IsTerminal reports whether a file is a terminal.
func IsTerminal(file *os.File) bool {
	return Control(file, func(fd int) error { _, err := unix.IoctlGetTermios(fd, unix.TCGETS); return err }) == nil
}
