package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// raftBatch has the changes of a write to what raft remembers, in the order of the fields.
type raftBatch struct {
	forgetRuns bool
	owner      string // "": as before
	reset      bool   // all entries go
	forget     bool   // the record goes
	record     []byte // nil: as before
	first      uint64 // number of the first of entries, which replace those from there on; 0: there are none
	entries    [][]byte
	keep       uint64 // entries of a lower number go
}

func (b *raftBatch) write(tx *bbolt.Tx) error {
	if b.forgetRuns {
		for _, name := range [][]byte{runsBucket, logBucket} {
			if err := tx.DeleteBucket(name); err != nil {
				return err
			}
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
	}
	if b.owner == "" && !b.reset && !b.forget && b.record == nil && b.first == 0 && b.keep == 0 {
		return nil
	}
	raft, err := tx.CreateBucketIfNotExists(raftBucket)
	if err != nil {
		return err
	}
	if b.forget {
		err = raft.Delete(recordKey)
	}
	for _, v := range []struct{ key, value []byte }{{ownerKey, []byte(b.owner)}, {recordKey, b.record}} {
		if len(v.value) > 0 {
			err = errors.Join(err, raft.Put(v.key, seal(v.key, v.value)))
		}
	}
	switch {
	case b.reset:
		err = errors.Join(err, deleteEntries(raft, 0, math.MaxUint64))
	case b.first > 0:
		err = errors.Join(err, deleteEntries(raft, b.first, math.MaxUint64))
	}
	for i, e := range b.entries {
		key := number(b.first + uint64(i))
		err = errors.Join(err, raft.Put(key, seal(key, e)))
	}
	if b.keep > 0 {
		err = errors.Join(err, deleteEntries(raft, 0, b.keep))
	}
	return err
}

// deleteEntries deletes entries from a number on up to before another one.
func deleteEntries(raft *bbolt.Bucket, from, to uint64) error {
	var keys [][]byte
	c := raft.Cursor()
	for key, _ := c.Seek(number(from)); len(key) == 8 && binary.BigEndian.Uint64(key) < to; key, _ = c.Next() {
		keys = append(keys, slices.Clone(key))
	}
	for _, key := range keys {
		if err := raft.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

// raftLog reads what raft remembers; no record: it remembers nothing.
func (j *Journal) raftLog() (owner string, record []byte, entries [][]byte, err error) {
	err = j.file.view(func(tx *bbolt.Tx) error {
		raft := tx.Bucket(raftBucket)
		if raft == nil {
			return nil
		}
		return raft.ForEach(func(key, value []byte) error {
			body, err := unseal(key, value)
			if err != nil {
				return fmt.Errorf("%q of raft's log: %w", key, err)
			}
			switch body = slices.Clone(body); {
			case string(key) == string(ownerKey):
				owner = string(body)
			case string(key) == string(recordKey):
				record = body
			case len(key) == 8:
				entries = append(entries, body)
			}
			return nil
		})
	})
	if err != nil {
		return "", nil, nil, fmt.Errorf("data file %s is torn: %w; %s", j.path, err, remedy)
	}
	return owner, record, entries, nil
}

// identity tells the file from a copy of it.
func (j *Journal) identity() (string, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, j.path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return "", fmt.Errorf("data file %s: %w", j.path, err)
	}
	return fmt.Sprintf("%d %d.%09d", st.Ino, st.Btime.Sec, st.Btime.Nsec), nil
}
