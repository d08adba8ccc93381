package lockedfile

import "golang.org/x/sys/unix"

// IsLocal reports whether only this machine writes to the file's file system, so
// that a size seen is the size, and inotify tells of every write. File
// systems not known here are taken for remote, which is slower and always right.
func (f *File) IsLocal() bool {
	var st unix.Statfs_t
	if err := IgnoringEINTR(func() error { return unix.Fstatfs(f.fd, &st) }); err != nil {
		return false
	}
	switch uint32(st.Type) {
	case unix.EXT4_SUPER_MAGIC, // and ext2, ext3
		unix.XFS_SUPER_MAGIC,
		unix.BTRFS_SUPER_MAGIC,
		unix.F2FS_SUPER_MAGIC,
		unix.TMPFS_MAGIC,
		unix.RAMFS_MAGIC,
		unix.OVERLAYFS_SUPER_MAGIC,
		unix.MSDOS_SUPER_MAGIC,
		unix.EXFAT_SUPER_MAGIC,
		zfsMagic,
		bcachefsMagic:
		return true
	}
	return false
}

// Magic numbers that x/sys does not name.
const (
	zfsMagic      = 0x2fc12fc1
	bcachefsMagic = 0xca451a4e
)
