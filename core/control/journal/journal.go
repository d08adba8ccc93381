// Package journal keeps what a hosted control plane has acknowledged: for each run a snapshot and
// the events since, in one bbolt file of a directory that one process has at a time. It does not
// interpret the bytes.
//
// The file has three buckets (format 1, docs/decisions/0017). "meta" identifies the file. "runs"
// maps a run's number to its id, its snapshot and the number of the last event in that. "log"
// maps the numbers of a run and an event to the event. One of several servers that stand in for each
// other has a fourth, "raft" (docs/decisions/0154): "owner" says which server of which list, and in which
// file, "record" is what raft has to remember, and a number is that of an entry of raft's log. Numbers are
// 8 bytes, big endian. Each value of the last three begins with the CRC-32C of its key and the rest.
package journal

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.etcd.io/bbolt"
)

// fileFormat is the version of the file. A newer one is refused.
const fileFormat = 1

// FileName is the name of the file in its directory.
const FileName = "control.db"

const kind = "rallypoint control plane"

var (
	metaBucket = []byte("meta")
	runsBucket = []byte("runs")
	logBucket  = []byte("log")
	raftBucket = []byte("raft")
	ownerKey   = []byte("owner")
	recordKey  = []byte("record")
	kindKey    = []byte("kind")
	formatKey  = []byte("format")
)

// checksums is made on first use, since most programs that load the library never store anything.
var checksums = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

// Options of a journal. A server uses the zero value.
type Options struct {
	// LockWait is how long to wait for another process to let go of the
	// directory; 0: 2 s.
	LockWait time.Duration
	// MaxSize bounds the file; 0: only the disk does.
	MaxSize int
}

// Journal is an open data directory. Its methods are safe for concurrent use.
type Journal struct {
	path  string
	lock  *os.File
	file  *mapped
	fresh bool
}

// Run is one run in a journal.
type Run struct {
	Number   uint64 // names the run in this journal; never used again
	ID       string
	Snapshot []byte
	Through  uint64   // number of the last event that is in the snapshot
	Events   [][]byte // those after it, in order
}

// WriteBatch has the changes of Write to one run, in the order of the fields.
type WriteBatch struct {
	Run      uint64
	Snapshot *Snapshot // replaces the one before and the events that are in it
	First    uint64    // number of the first of Events
	Events   [][]byte
	Forget   bool // everything of the run goes
}

// Snapshot is a run's state after an event.
type Snapshot struct {
	ID      string
	Through uint64
	State   []byte
}

// Open makes the directory (mode 0700) and the file (0600) unless they exist, and locks the
// directory until Close. It is an error if another process has the directory, if it belongs to
// another user or others can write to it, or if the file is foreign, torn or of a newer format.
// The error says what to do, and nothing is changed.
func Open(dir string, o Options) (j *Journal, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	lock, err := takeLock(dir, o.LockWait)
	if err != nil {
		return nil, err
	}
	j = &Journal{path: filepath.Join(dir, FileName), lock: lock}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	if _, err := os.Lstat(j.path); errors.Is(err, os.ErrNotExist) {
		j.fresh = true
		if err := makeWhole(j.path, func(unfinished string) error { return create(unfinished, o) }); err != nil {
			return nil, fmt.Errorf("cannot make the data file %s: %w", j.path, err)
		}
	}
	if err := j.open(o); err != nil {
		return nil, err
	}
	return j, nil
}

// Owner names the one of several servers that the directory belongs to; "" if it is of a server without peers.
func (j *Journal) Owner() (string, error) {
	owner, _, _, err := j.raftLog()
	name, _, _ := strings.Cut(owner, "\n")
	return name, err
}

func create(path string, o Options) error {
	m, err := openMapped(path, bbolt.Options{MaxSize: o.MaxSize})
	if err != nil {
		return err
	}
	err = m.update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{metaBucket, runsBucket, logBucket} {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		meta := tx.Bucket(metaBucket)
		return errors.Join(meta.Put(kindKey, []byte(kind)), meta.Put(formatKey, number(fileFormat)))
	})
	return errors.Join(err, m.close())
}

// remedy ends the errors of a file that cannot be used.
const remedy = "give another --data-dir, or move the file away: jobs that run now rejoin by themselves, with what they know"

func (j *Journal) open(o Options) error {
	info, err := os.Lstat(j.path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("data file %s is not a regular file; give another --data-dir", j.path)
	}
	if fault := foreign(info, filepath.Dir(j.path)); fault != "" {
		return fmt.Errorf("data file %s %s: what it says cannot be trusted; give another --data-dir, or move the file away", j.path, fault)
	}
	if info.Size() == 0 {
		return fmt.Errorf("data file %s is empty, as a crash of the file system may leave it; %s", j.path, remedy)
	}
	j.file, err = openMapped(j.path, bbolt.Options{Timeout: time.Second, MaxSize: o.MaxSize, NoStatistics: true})
	switch {
	case err == nil:
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("data file %s: %w", j.path, err)
	default:
		return fmt.Errorf("data file %s cannot be read: it is torn, or not a data file of Rallypoint (%w); %s", j.path, err, remedy)
	}
	err = j.file.view(j.identify)
	if errors.As(err, new(*faultError)) {
		err = fmt.Errorf("data file %s is torn: %w; %s", j.path, err, remedy)
	}
	if err != nil {
		_ = j.file.close()
	}
	return err
}

// identify checks that the file is ours, whole and not newer.
func (j *Journal) identify(tx *bbolt.Tx) error {
	info, err := os.Stat(j.path)
	if err != nil {
		return err
	}
	if info.Size() < tx.Size() {
		return fmt.Errorf("data file %s is torn: it has %d bytes and should have %d; %s", j.path, info.Size(), tx.Size(), remedy)
	}
	meta := tx.Bucket(metaBucket)
	if meta == nil || !bytes.Equal(meta.Get(kindKey), []byte(kind)) || len(meta.Get(formatKey)) != 8 {
		return fmt.Errorf("data file %s is a bbolt file of another program; give another --data-dir", j.path)
	}
	if format := binary.BigEndian.Uint64(meta.Get(formatKey)); format > fileFormat || format == 0 {
		return fmt.Errorf("data file %s has format %d, written by a newer release; this one reads up to %d: use the newer release, or give another --data-dir",
			j.path, format, fileFormat)
	}
	if tx.Bucket(runsBucket) == nil || tx.Bucket(logBucket) == nil {
		return fmt.Errorf("data file %s is torn: it has no runs; %s", j.path, remedy)
	}
	return nil
}

// Fresh reports whether Open has made the file.
func (j *Journal) Fresh() bool { return j.fresh }

// Path returns the name of the file.
func (j *Journal) Path() string { return j.path }

// Size returns the size of the file in bytes.
func (j *Journal) Size() int64 {
	info, err := os.Stat(j.path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// Close lets go of the directory. The next Open has everything that Write has returned nil for.
func (j *Journal) Close() error {
	err := j.file.close()
	j.lock.Close()
	return err
}

// Runs reads all runs, in the order of their numbers. An error says which part
// of the file is broken.
func (j *Journal) Runs() (runs []Run, err error) {
	err = j.file.view(func(tx *bbolt.Tx) error {
		runs, err = readRuns(tx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("data file %s is torn: %w; %s", j.path, err, remedy)
	}
	return runs, nil
}

func readRuns(tx *bbolt.Tx) ([]Run, error) {
	var runs []Run
	place := map[uint64]int{}
	err := tx.Bucket(runsBucket).ForEach(func(key, value []byte) error {
		body, err := unseal(key, value)
		if err != nil || len(key) != 8 || len(body) < 10 {
			return fmt.Errorf("run %x: %w", key, cmp.Or(err, errShort))
		}
		through, idLen := binary.BigEndian.Uint64(body), int(binary.BigEndian.Uint16(body[8:]))
		if len(body) < 10+idLen {
			return fmt.Errorf("run %x: %w", key, errShort)
		}
		r := Run{
			Number: binary.BigEndian.Uint64(key), Through: through,
			ID: string(body[10 : 10+idLen]), Snapshot: bytes.Clone(body[10+idLen:]),
		}
		place[r.Number] = len(runs)
		runs = append(runs, r)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return runs, tx.Bucket(logBucket).ForEach(func(key, value []byte) error {
		body, err := unseal(key, value)
		if err != nil || len(key) != 16 {
			return fmt.Errorf("event %x: %w", key, cmp.Or(err, errShort))
		}
		i, known := place[binary.BigEndian.Uint64(key)]
		if !known {
			return fmt.Errorf("event %x belongs to no run", key)
		}
		r := &runs[i]
		if n := binary.BigEndian.Uint64(key[8:]); n != r.Through+uint64(len(r.Events))+1 {
			return fmt.Errorf("event %d of run %q is missing", r.Through+uint64(len(r.Events))+1, r.ID)
		}
		r.Events = append(r.Events, bytes.Clone(body))
		return nil
	})
}

var (
	errShort    = errors.New("it is cut short")
	errChecksum = errors.New("its checksum is wrong")
)

// Write does all changes at once, or none: it returns nil once they are on the
// disk. After an error it may be called again; after a fault of the file, which the
// error names, it refuses at once for as long as the journal is open.
func (j *Journal) Write(changes []WriteBatch) error { return j.write(changes, raftBatch{}) }

func (j *Journal) write(changes []WriteBatch, log raftBatch) error {
	err := j.file.update(func(tx *bbolt.Tx) error {
		if err := log.write(tx); err != nil {
			return err
		}
		for i := range changes {
			if err := changes[i].write(tx); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.As(err, new(*faultError)) {
		return fmt.Errorf("writing to %s: %w, as when it is truncated under a running server or its disk fails: "+
			"this server cannot use it any more; start it again, on another --data-dir if the file is refused", j.path, err)
	}
	if err != nil {
		return fmt.Errorf("writing to %s: %w", j.path, err)
	}
	return nil
}

func (w *WriteBatch) write(tx *bbolt.Tx) error {
	runs, log := tx.Bucket(runsBucket), tx.Bucket(logBucket)
	run := number(w.Run)
	if s := w.Snapshot; s != nil {
		body := make([]byte, 0, 10+len(s.ID)+len(s.State))
		body = binary.BigEndian.AppendUint64(body, s.Through)
		body = binary.BigEndian.AppendUint16(body, uint16(len(s.ID)))
		body = append(append(body, s.ID...), s.State...)
		if err := errors.Join(runs.Put(run, seal(run, body)), deleteEvents(log, run, s.Through)); err != nil {
			return err
		}
	}
	for i, ev := range w.Events {
		key := binary.BigEndian.AppendUint64(number(w.Run), w.First+uint64(i))
		if err := log.Put(key, seal(key, ev)); err != nil {
			return err
		}
	}
	if w.Forget {
		return errors.Join(runs.Delete(run), deleteEvents(log, run, 1<<64-1))
	}
	return nil
}

// deleteEvents deletes a run's events up to one.
func deleteEvents(log *bbolt.Bucket, run []byte, through uint64) error {
	last := binary.BigEndian.AppendUint64(bytes.Clone(run), through)
	c := log.Cursor()
	for key, _ := c.Seek(run); key != nil && bytes.Compare(key, last) <= 0; key, _ = c.Seek(run) {
		if err := c.Delete(); err != nil {
			return err
		}
	}
	return nil
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(make([]byte, 0, 16), n) }

func checksum(key, body []byte) uint32 {
	table := checksums()
	return crc32.Update(crc32.Checksum(key, table), table, body)
}

func seal(key, body []byte) []byte {
	sum := checksum(key, body)
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), sum), body...)
}

func unseal(key, value []byte) ([]byte, error) {
	if len(value) < 4 {
		return nil, errShort
	}
	body := value[4:]
	if binary.BigEndian.Uint32(value) != checksum(key, body) {
		return nil, errChecksum
	}
	return body, nil
}
