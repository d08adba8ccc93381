package filelog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/core/training"
	"rallypoint/internal/lockedfile"
)

// Inspect reads the runs in the directory dir in the order of their ids, or only the run runID
// unless that is "". It leaves out a run that does not exist, or is just being made or removed,
// and, if it reads all, those of other users.
//
// It takes no part in any run: it creates and writes nothing, and locks nothing but
// heartbeat files, each shared and for as long as it takes to see that no node holds
// it, as nodes do with each other's.
func Inspect(dir, runID string) ([]sharedlog.Record, error) {
	names := []string{runDir(runID)}
	if runID == "" {
		found, err := os.ReadDir(dir)
		if err != nil {
			return nil, New(dir, "", nil).explain("read", err)
		}
		names = nil
		for _, n := range found {
			if n.IsDir() && strings.HasPrefix(n.Name(), runDir("")) {
				names = append(names, n.Name())
			}
		}
	} else if _, err := os.Stat(dir); err != nil {
		return nil, New(dir, runID, nil).explain("read", err)
	}
	var records []sharedlog.Record
	for _, name := range names {
		l := New(dir, runID, nil)
		l.dir, l.readOnly = filepath.Join(dir, name), true
		r, err := l.inspect()
		if errors.Is(err, fs.ErrNotExist) || runID == "" && errors.Is(err, fs.ErrPermission) {
			continue
		}
		if err != nil {
			return nil, l.explain("read", err)
		}
		records = append(records, r)
	}
	slices.SortFunc(records, func(a, b sharedlog.Record) int { return strings.Compare(a.RunID, b.RunID) })
	return records, nil
}

// inspect reads the run, whose log need not be open. It is fs.ErrNotExist if there is
// none.
func (l *Log) inspect() (sharedlog.Record, error) {
	for tries := 1; ; tries++ {
		r, err := l.tryInspect()
		// A snapshot, or another generation, may replace the file meanwhile.
		if err == nil || !isGone(err) && !errors.Is(err, lockedfile.ErrVanished) && !errors.Is(err, lockedfile.ErrReplaced) {
			return r, err
		}
		if tries == openTries {
			return r, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
		}
	}
}

// readRun opens the run's file and reads its header: fs.ErrNotExist if there is no run.
// That of the Log's own id is wanted, if it has one.
func (l *Log) readRun() (h logHeader, run *lockedfile.File, err error) {
	run, err = lockedfile.OpenFile(filepath.Join(l.dir, "run"), unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return h, nil, err
	}
	h, ok, err := l.headerOf(run)
	switch {
	case err != nil:
	case !ok:
		err = fs.ErrNotExist
	case l.runID != "" && l.runID != h.runID:
		err = l.notOurs(h)
	}
	if err != nil {
		run.Close()
	}
	return h, run, err
}

func (l *Log) tryInspect() (r sharedlog.Record, err error) {
	h, run, err := l.readRun()
	if err != nil {
		return r, err
	}
	defer run.Close()
	l.runID, l.generation = h.runID, h.generation
	c, err := l.last()
	if err != nil {
		return r, err
	}
	defer c.close()
	size, err := c.size()
	if err != nil {
		return r, err
	}
	state, err := c.state(size)
	if err != nil {
		return r, err
	}
	r = sharedlog.Record{RunID: l.runID, Generation: l.generation, Snapshot: sharedlog.Snapshot{Index: c.base, State: state}}
	err = c.read(size, func(fr frame) bool {
		if fr.kind == frameEntry {
			r.Entries = append(r.Entries, sharedlog.Entry{Index: fr.index, Data: append([]byte{}, fr.payload...)})
		}
		return true
	})
	if err != nil {
		return r, err
	}
	r.Living, err = l.living()
	for session := range r.Living {
		if report := l.readReport(session); report != nil {
			if r.Reports == nil {
				r.Reports = make(map[rendezvous.SessionID]*training.Report)
			}
			r.Reports[session] = report
		}
	}
	return r, err
}

// living returns the sessions whose heartbeat file is locked.
func (l *Log) living() (map[rendezvous.SessionID]bool, error) {
	found, err := os.ReadDir(l.dir)
	if err != nil {
		return nil, err
	}
	sessions := make(map[rendezvous.SessionID]bool)
	for _, n := range found {
		name, ok := strings.CutPrefix(n.Name(), "beat-"+l.generation+"-")
		if !ok || strings.HasSuffix(name, ".new") {
			continue
		}
		session := rendezvous.SessionID(name) // drawn at random, of letters that a name may have
		liveness, err := l.readHeartbeat(session)
		if err != nil {
			return nil, err
		}
		if liveness.State == sharedlog.LivenessHeartbeats {
			sessions[session] = true
		}
	}
	return sessions, nil
}

// Append appends an entry to the log of that generation of a run in the directory dir, for a
// process that is no node of it, after the entry of the index last: the error is
// sharedlog.ErrMoved if that is not the last one. It is final (ErrState) if the generation has
// gone.
func Append(ctx context.Context, dir, runID, generation string, last uint64, entry []byte) error {
	l := New(dir, runID, nil)
	l.generation = generation
	defer l.release()
	var err error
	if l.writer, err = l.last(); err != nil {
		if isGone(err) {
			err = fmt.Errorf("%w: %w", lockedfile.ErrVanished, err)
		}
		return l.explain("append to", err)
	}
	err = l.write(ctx, func(c *cursor) error {
		if c.index != last {
			return sharedlog.ErrMoved
		}
		return c.append(appendFrame(nil, frameEntry, c.index+1, entry), c.index+1)
	})
	return l.explain("append to", err)
}
