package filelog

import (
	"context"
	"encoding/binary"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/core/training"
	"rallypoint/internal/lockedfile"
)

// heartbeat is this node's heartbeat file: the node holds its lock and counts in it. After the
// count comes the node's report about its workers, for processes that inspect the run.
type heartbeat struct {
	session rendezvous.SessionID
	file    *lockedfile.File
	count   uint64
}

const (
	heartbeatBytes = 8
	maxReport      = 1024 // bytes after the count
)

var _ sharedlog.ReportCarrier = (*Log)(nil)

// CarryReport implements sharedlog.ReportCarrier.
func (l *Log) CarryReport(r *training.Report) { l.report = training.Encode(r) }

func (l *Log) heartbeatPath(session rendezvous.SessionID) string {
	return filepath.Join(l.dir, "beat-"+l.generation+"-"+strings.TrimPrefix(runDir(string(session)), "rallypoint-"))
}

// Heartbeat implements sharedlog.Log.
func (l *Log) Heartbeat(_ context.Context, session rendezvous.SessionID, _ time.Duration) error {
	if l.generation == "" {
		return errNoLog
	}
	if l.heartbeat == nil || l.heartbeat.session != session {
		b, err := l.newHeartbeat(session)
		if err != nil {
			return l.explain("show a sign of life in", err)
		}
		l.heartbeat.remove()
		l.heartbeat = b
		return nil
	}
	return l.explain("show a sign of life in", l.heartbeat.write(l.local, l.report))
}

// newHeartbeat makes the file of a session. It gets its name when it is locked, so
// that no other node takes this one for dead before it lives.
func (l *Log) newHeartbeat(session rendezvous.SessionID) (*heartbeat, error) {
	path := l.heartbeatPath(session)
	f, err := lockedfile.OpenFile(path+".new", unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW, logMode)
	if err != nil {
		return nil, err
	}
	b := &heartbeat{session: session, file: f}
	if err = b.write(l.local, l.report); err == nil {
		err = f.Rename(path)
	}
	if err != nil {
		_ = unix.Unlink(path + ".new")
		f.Close()
		return nil, err
	}
	return b, nil
}

// write counts on. The lock, which is held already, is asked for each time: a
// server that was restarted may have forgotten it.
func (h *heartbeat) write(local bool, report []byte) error {
	if _, err := h.file.TryLock(unix.LOCK_EX); err != nil {
		return err
	}
	h.count++
	if _, err := h.file.WriteAt(append(binary.LittleEndian.AppendUint64(nil, h.count), report...), 0); err != nil {
		return err
	}
	if !local {
		return h.file.Sync()
	}
	return nil
}

// remove removes the file and closes it.
func (h *heartbeat) remove() {
	if h != nil {
		_ = h.file.Remove()
		h.file.Close()
	}
}

// ReadHeartbeats implements sharedlog.Log.
func (l *Log) ReadHeartbeats(_ context.Context, sessions []rendezvous.SessionID) ([]sharedlog.Liveness, error) {
	list := make([]sharedlog.Liveness, len(sessions))
	for i, session := range sessions {
		var err error
		if list[i], err = l.readHeartbeat(session); err != nil {
			return nil, l.explain("look for the other nodes in", err)
		}
	}
	return list, nil
}

// readHeartbeat reads one file. It opens the file each time, which makes a network file system
// show its present content.
func (l *Log) readHeartbeat(session rendezvous.SessionID) (sharedlog.Liveness, error) {
	broken := sharedlog.Liveness{State: sharedlog.LivenessDisconnected}
	f, err := lockedfile.OpenFile(l.heartbeatPath(session), unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if isGone(err) {
		return broken, nil
	}
	if err != nil {
		return broken, err
	}
	defer f.Close()
	free, err := f.TryLock(unix.LOCK_SH)
	if err != nil || free {
		return broken, err
	}
	var count [heartbeatBytes]byte
	if _, err := f.ReadAt(count[:], 0); err != nil {
		if isGone(err) {
			return broken, nil
		}
		return broken, err
	}
	return sharedlog.Liveness{Heartbeats: binary.LittleEndian.Uint64(count[:])}, nil
}

// readReport reads a live node's report about its workers; nil if there is none, or none that
// this release can read.
func (l *Log) readReport(session rendezvous.SessionID) *training.Report {
	f, err := lockedfile.OpenFile(l.heartbeatPath(session), unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil || size <= heartbeatBytes {
		return nil
	}
	report := make([]byte, min(size-heartbeatBytes, maxReport))
	if _, err := f.ReadAt(report, heartbeatBytes); err != nil {
		return nil
	}
	return training.Decode(report)
}
