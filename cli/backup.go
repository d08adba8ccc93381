package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"rallypoint/core/control"
	"rallypoint/core/control/journal"
	"rallypoint/internal/lockedfile"
	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

const (
	// backupName is the copy that `serve` makes next to its data file on request.
	backupName = "backup.db"
	// backupSignal is the request. Only the server's own user and root can send it, and they can
	// read the directory anyway.
	backupSignal = syscall.SIGUSR1
	backupEvery  = 20 * time.Millisecond
)

// backupRequests are the signals that ask `serve` for a copy. They are caught before the
// directory is locked, so that the process which the lock names never dies of one.
type backupRequests struct {
	signals chan os.Signal
	running sync.WaitGroup
}

type copier interface {
	Path() string // of its file
	Copy(to string) error
}

func catchBackupRequests() *backupRequests {
	b := &backupRequests{signals: make(chan os.Signal, 1)}
	signal.Notify(b.signals, backupSignal)
	return b
}

// serve answers the requests until stop; without a directory they are ignored.
func (b *backupRequests) serve(data copier, log *slog.Logger) {
	b.running.Go(func() {
		for range b.signals {
			if data == nil {
				log.Warn("asked for a backup, but there is no --data-dir")
				continue
			}
			path, began := filepath.Join(filepath.Dir(data.Path()), backupName), time.Now()
			if err := data.Copy(path); err != nil {
				log.Error("the data directory cannot be copied", "err", err)
				continue
			}
			log.Info("copied the data directory", "to", path, "took", time.Since(began).Round(time.Millisecond))
		}
	})
}

func (b *backupRequests) stop() {
	signal.Stop(b.signals)
	close(b.signals)
	b.running.Wait()
}

func newAdminBackup() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "backup DIRECTORY FILE",
		Short: "Copy the data directory of a running server",
		Long: `Copy the data directory of "rallypoint serve --data-dir DIRECTORY" to FILE, whether or
not a server is using it. Run this on the server's machine (in its container), as its
user or root. The server writes a consistent copy itself; its jobs wait only briefly.
The copy is checked before it gets its name, so FILE is complete or absent. An existing
FILE is replaced.

Only the owner can read FILE, because it contains the sessions of all jobs: keep it so.

To restore it, stop the server, put FILE as control.db into an empty directory, and
start the server with that directory: running jobs continue (docs/backup.md).`,
		Example: `  rallypoint admin backup /var/lib/rallypoint /backup/rallypoint-$(date +%F).db`,
		Args:    wantArgs("DIRECTORY", "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := positive("--timeout", timeout); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			defer catchBackupRequests().stop() // of another backup, while this one has the directory
			runs, size, err := backup(ctx, args[0], args[1])
			if err != nil {
				return failed("backup of %s: %w", args[0], err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "copied %s (%d bytes) to %s\n", wording.Count(runs, "run", "runs"), size, printable.Text(args[1]))
			return nil
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "longest `TIME` to wait for the server")
	return cmd
}

// backup copies a data directory to a file and returns how many runs that holds.
func backup(ctx context.Context, dir, file string) (runs int, size int64, err error) {
	pid, err := journal.Holder(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, fmt.Errorf("%w: no server has used this directory; name that of its --data-dir", err)
	}
	if err != nil {
		return 0, 0, err
	}
	// Beside the file, so that its name is given by a rename; a directory of this user's
	// own, whatever the folder is.
	scratch, err := os.MkdirTemp(filepath.Dir(file), ".rallypoint-backup-")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(scratch)
	copied := filepath.Join(scratch, journal.FileName)
	if pid == 0 {
		err = copyUnused(dir, copied)
	} else {
		err = copyUsed(ctx, dir, copied, pid)
	}
	if err != nil {
		return 0, 0, err
	}
	data, err := control.OpenData(scratch, journal.Options{})
	if err != nil {
		return 0, 0, fmt.Errorf("the copy cannot be read: %w", err)
	}
	runs = data.Runs()
	if err := data.Close(); err != nil {
		return 0, 0, err
	}
	info, err := os.Stat(copied)
	if err != nil {
		return 0, 0, err
	}
	return runs, info.Size(), os.Rename(copied, file)
}

func copyUnused(dir, to string) error {
	if _, err := os.Stat(filepath.Join(dir, journal.FileName)); err != nil {
		return err // which opening would make
	}
	data, err := control.OpenData(dir, journal.Options{})
	if err != nil {
		return err
	}
	return errors.Join(data.Copy(to), data.Close())
}

func copyUsed(ctx context.Context, dir, to string, pid int) error {
	made := filepath.Join(dir, backupName)
	if err := os.Remove(made); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := askForBackup(dir, pid); err != nil {
		return fmt.Errorf("it is in use by process %d, which cannot be asked from here: %w; run this as its user and, of a container, in it", pid, err)
	}
	for began := time.Now(); ; {
		err := fetchBackup(ctx, made, to)
		if err == nil {
			return os.Remove(made)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d, which has it, made no copy in %v; its log says why", pid, time.Since(began).Round(time.Millisecond))
		case <-time.After(backupEvery):
		}
	}
}

// askForBackup signals the process that has a directory, and no other that has got its number
// meanwhile.
func askForBackup(dir string, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	switch still, err := journal.Holder(dir); {
	case err != nil:
		return err
	case still != pid:
		return errors.New("it has ended")
	}
	return unix.PidfdSendSignal(fd, backupSignal, nil, 0)
}

// fetchBackup copies the file that the server has made. It accepts only a file of the directory's
// owner, because root may run it on another user's directory.
func fetchBackup(ctx context.Context, made, to string) error {
	in, err := lockedfile.OpenFile(made, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("the server's copy %s: %w", made, err)
	}
	defer in.Close()
	var file, dir unix.Stat_t
	if err := errors.Join(in.Stat(&file), unix.Stat(filepath.Dir(made), &dir)); err != nil {
		return err
	}
	if dir.Uid != uint32(os.Geteuid()) && dir.Uid != 0 && file.Uid != dir.Uid { // a link, perhaps
		return fmt.Errorf("the server's copy %s belongs to user %d, its directory to user %d", made, file.Uid, dir.Uid)
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, untilDone{ctx, io.NewSectionReader(in, 0, file.Size)})
	return errors.Join(err, out.Sync(), out.Close())
}

// untilDone is a reader that ends with a context.
type untilDone struct {
	ctx context.Context
	io.Reader
}

func (u untilDone) Read(b []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.Reader.Read(b)
}
