package logs

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// openRegular opens a file that a worker may have made, for reading. Anything but a regular file is an
// error: opening or reading it might never end. flags may have O_CREATE.
func openRegular(path string, flags int) (*os.File, os.FileInfo, error) {
	file, err := os.OpenFile(path, flags|unix.O_NONBLOCK|unix.O_NOCTTY, 0o666)
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		_ = file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

// ReadRegular reads a file that a worker may have made and that has most bytes at most; of one
// that grows meanwhile it reads no more.
func ReadRegular(path string, most int64) ([]byte, error) {
	file, info, err := openRegular(path, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if info.Size() > most {
		return nil, fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return io.ReadAll(io.LimitReader(file, most))
}
