package fence

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"rallypoint/internal/lockedfile"
)

// operate carries out one operation on files. Tests replace it, to fail or to stop the process
// before any one of them.
var operate = func(_ string, do func() error) error { return do() }

type names struct {
	data   string // file or folder of the checkpoint
	folder string // holds the files below
	record string
	lock   string
	prefix string // of temporaries' names; "" if the writer writes into the folder itself
}

// newNames returns the files for an absolute path. The record of a file or folder that is
// replaced lies beside it. That of a folder that is written into lies in it: the folder may be
// where a volume is mounted, and beside it would be another file system, each machine's own. There
// its name begins with "_", which uploads of model folders leave out.
func newNames(path string, into bool) names {
	if into {
		record := filepath.Join(path, "_rallypoint.fence")
		return names{data: path, folder: path, record: record, lock: record + ".lock"}
	}
	folder, name := filepath.Split(path)
	return names{
		data: path, folder: filepath.Clean(folder), record: path + ".fence", lock: path + ".fence.lock",
		prefix: "." + name + ".fence-",
	}
}

// temporary returns a new name for data that will replace the version base.
func (n names) temporary(base string) string {
	return filepath.Join(n.folder, n.prefix+short(base)+"-"+short(newVersion()))
}

// aside is added to the name of a temporary while what it replaces is moved aside.
const aside = "-old"

// short is the part of a version that is in names of files.
func short(version string) string { return version[:min(16, len(version))] }

func isShort(text string) bool { return isVersion(text + text) }

func newVersion() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// resolve returns the absolute path that names the checkpoint for every process: without
// symbolic links as far as it exists.
func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if err == nil {
		return real, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if target, err := os.Readlink(path); err == nil { // to what does not exist yet
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		return resolve(target)
	}
	if path == "/" {
		return path, nil
	}
	folder, err := resolve(filepath.Dir(path))
	return filepath.Join(folder, filepath.Base(path)), err
}

// exists reports whether there is a checkpoint: for a folder that is written into, whether it
// holds anything but the fence's own files.
func (n names) exists() (bool, error) {
	if n.prefix != "" {
		_, err := os.Lstat(n.data)
		return err == nil, ignoreMissing(err)
	}
	entries, err := os.ReadDir(n.folder)
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), filepath.Base(n.record)) {
			return true, nil
		}
	}
	return false, ignoreMissing(err)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// openLock opens the file that is locked. One that another user has made may be locked by those
// who can only read it, where the file system allows that.
func (n names) openLock() (*lockedfile.File, error) {
	f, err := lockedfile.OpenFile(n.lock, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, 0o666)
	if errors.Is(err, fs.ErrPermission) {
		if readable, again := lockedfile.OpenFile(n.lock, unix.O_RDONLY|unix.O_NOFOLLOW, 0); again == nil {
			return readable, nil
		}
	}
	return f, err
}

// read returns the record, and the zero record if there is none.
func (n names) read() (r record, err error) {
	f, err := lockedfile.OpenFile(n.record, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err != nil {
		return record{}, n.damaged(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := f.Stat(&st); err != nil {
		return record{}, err
	}
	if !n.trusts(st.Uid) {
		return record{}, n.damaged(fmt.Errorf("it belongs to user %d, who owns neither the checkpoint nor its folder", st.Uid))
	}
	encoded := make([]byte, maxRecord+1)
	size, err := f.ReadAt(encoded, 0)
	if err != nil && err != io.EOF {
		return record{}, err
	}
	if r, err = decode(encoded[:size]); err != nil {
		return record{}, n.damaged(err)
	}
	return r, nil
}

// trusts reports whether a user's record counts: this process's own, root's, that of the owner of
// the folder or of the checkpoint, and anybody's in a folder whose files others may replace.
func (n names) trusts(uid uint32) bool {
	if uid == 0 || int(uid) == os.Geteuid() {
		return true
	}
	for _, path := range []string{n.folder, n.data} {
		info, err := os.Lstat(path)
		if err != nil {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid == uid {
			return true
		}
		if path == n.folder && info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
			return true
		}
	}
	return false
}

// write makes r the record, on the disk when it returns, if present finds nothing against it. A lock that was lost
// admits two writers. Each first creates its record beside the present one, removes those of others, and looks at the
// present one again: so one of two finds its own gone, or the other's in place.
func (n names) write(r record, present func() error) error {
	path := n.record + "." + short(r.Version)
	err := operate("write the record", func() error {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err != nil {
			return err
		}
		_, err = f.Write(r.encode())
		return errors.Join(err, f.Sync(), f.Close())
	})
	if err == nil {
		err = n.removeUnfinished(path)
	}
	if err == nil {
		err = present()
	}
	if err == nil {
		err = operate("rename the record", func() error { return os.Rename(path, n.record) })
		if errors.Is(err, fs.ErrNotExist) {
			err = cmp.Or(present(), err)
		}
	}
	if err != nil {
		_ = os.Remove(path)
		return err
	}
	return n.syncFolder()
}

// replace puts what is at temporary in the checkpoint's place. What was there goes to temporary,
// or beside it, or is gone; sweep removes it.
func (n names) replace(temporary string) error {
	old, err := os.Lstat(n.data)
	if ignoreMissing(err) != nil {
		return err
	}
	fresh, missing := os.Lstat(temporary)
	if missing != nil {
		return missing
	}
	if err != nil || !old.IsDir() && !fresh.IsDir() {
		err = operate("rename the data", func() error { return os.Rename(temporary, n.data) })
	} else {
		err = operate("exchange the data", func() error {
			return unix.Renameat2(unix.AT_FDCWD, temporary, unix.AT_FDCWD, n.data, unix.RENAME_EXCHANGE)
		})
		if err == unix.EINVAL || err == unix.ENOSYS || err == unix.EOPNOTSUPP {
			err = operate("move the data aside", func() error { return os.Rename(n.data, temporary+aside) })
			if err == nil {
				err = operate("rename the data", func() error { return os.Rename(temporary, n.data) })
				if err != nil {
					_ = os.Rename(temporary+aside, n.data) // else the next to open it does that
				}
			}
		}
	}
	if err != nil {
		return err
	}
	return n.syncFolder()
}

// sweep removes what writers that stopped have left: records that were not renamed, and the
// temporaries that can no longer replace anything, since they were made to replace another version
// than the present one. A folder that was moved aside comes back if nothing has taken its place.
// The caller holds the lock.
func (n names) sweep(present string) error {
	entries, err := os.ReadDir(n.folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := filepath.Join(n.folder, entry.Name())
		base, moved, ours := n.parse(entry.Name())
		if !ours && !n.isUnfinished(entry.Name()) || ours && base == short(present) {
			continue // not the fence's, or of a writer that may still be allowed to replace
		}
		if _, err := os.Lstat(n.data); moved && errors.Is(err, fs.ErrNotExist) {
			if err := operate("move the data back", func() error { return os.Rename(path, n.data) }); err != nil {
				return err
			}
			continue
		}
		if err := operate("remove a temporary", func() error { return os.RemoveAll(path) }); err != nil {
			return err
		}
	}
	return nil
}

// removeUnfinished removes records that are not in place yet, but one's own.
func (n names) removeUnfinished(own string) error {
	entries, err := os.ReadDir(n.folder)
	for _, entry := range entries {
		if path := filepath.Join(n.folder, entry.Name()); path != own && n.isUnfinished(entry.Name()) {
			err = cmp.Or(err, operate("remove a record", func() error { return os.RemoveAll(path) }))
		}
	}
	return err
}

// parse reads the name of a temporary: which version it is to replace, and whether it is what was
// moved aside.
func (n names) parse(name string) (base string, moved, ours bool) {
	rest, ours := strings.CutPrefix(name, n.prefix)
	rest, moved = strings.CutSuffix(rest, aside)
	base, own, cut := strings.Cut(rest, "-")
	return base, moved, ours && n.prefix != "" && cut && isShort(own) && (base == "" || isShort(base))
}

// isUnfinished reports whether a name is that of a record before its renaming.
func (n names) isUnfinished(name string) bool {
	version, ok := strings.CutPrefix(name, filepath.Base(n.record)+".")
	return ok && isShort(version)
}

// syncTree writes a file, or a folder with all that it holds, to the disk.
func syncTree(path string) error {
	return filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !entry.IsDir() && !entry.Type().IsRegular() {
			return nil // a symbolic link, say
		}
		return operate("sync the data", func() error { return syncOne(path) })
	})
}

func syncOne(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (n names) syncFolder() error {
	return operate("sync the folder", func() error { return syncOne(n.folder) })
}
