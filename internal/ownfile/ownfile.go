// Package ownfile keeps files that this process has made and others write to, without a
// descriptor for each: every use opens the file again, and refuses what has taken its place.
package ownfile

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// File is a file that this process has made.
type File struct {
	path     string
	dev, ino uint64
}

// errReplaced tells that another file has the path now.
var errReplaced = errors.New("another file has taken its place")

// Create makes a file with a content, readable and writable for this user alone. The path must
// be free. Nothing is left of a file that cannot be written.
func Create(path string, content []byte) (*File, error) {
	fd, err := open(path, unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), path)
	defer func() { _ = file.Close() }()
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		_, err = file.WriteAt(content, 0)
	}
	if err != nil {
		_ = os.Remove(path)
		return nil, err
	}
	return &File{path, st.Dev, st.Ino}, nil
}

// Path is where the file was made.
func (f *File) Path() string { return f.path }

// Open opens the file for reading and writing. It follows no link and does not block, whatever
// lies at the path; anything but the file itself is errReplaced. The caller closes it.
func (f *File) Open() (*os.File, error) {
	fd, err := f.open()
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.path), nil
}

// ReadAt opens the file, reads as an io.ReaderAt does, and closes it. An agent at rest does little else, so it
// makes four system calls, where an os.File makes six.
func (f *File) ReadAt(b []byte, at int64) (int, error) {
	fd, err := f.open()
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	n, err := unix.Pread(fd, b, at)
	if err == nil && n < len(b) {
		err = io.EOF
	}
	return max(n, 0), err
}

func (f *File) open() (fd int, err error) {
	if fd, err = open(f.path, 0); err != nil {
		return fd, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Dev != f.dev || st.Ino != f.ino {
		_ = unix.Close(fd)
		return 0, &fs.PathError{Op: "open", Path: f.path, Err: errReplaced}
	}
	return fd, nil
}

// Remove removes what lies at the path.
func (f *File) Remove() { _ = os.Remove(f.path) }

func open(path string, flags int) (fd int, err error) {
	if fd, err = unix.Open(path, flags|unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600); err != nil {
		err = &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, err
}
