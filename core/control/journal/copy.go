package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// Copy writes the file as it is at one moment to another one (mode 0600), which is whole
// or not there, and on the disk when Copy returns. Writes wait meanwhile.
func (j *Journal) Copy(path string) error {
	return makeWhole(path, func(unfinished string) error {
		f, err := os.OpenFile(unfinished, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return err
		}
		err = j.file.view(func(tx *bbolt.Tx) error {
			_, err := tx.WriteTo(f)
			return err
		})
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			return fmt.Errorf("copying %s to %s: %w", j.path, path, err)
		}
		return nil
	})
}

// makeWhole makes a file under another name first, so that it is either whole or not there.
func makeWhole(path string, write func(unfinished string) error) error {
	unfinished := path + ".new"
	if err := os.Remove(unfinished); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	err := write(unfinished)
	if err == nil {
		err = os.Rename(unfinished, path)
	}
	if err != nil {
		_ = os.Remove(unfinished)
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
