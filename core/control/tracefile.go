package control

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"rallypoint/core/trace"
)

// maxTraceFile bounds a trace file, in bytes.
const maxTraceFile = 1 << 30

// TraceFile is a file to which records are appended, one line each; its Record is for
// Config.Trace. When Record returns the system has the record, though perhaps not
// the disk: a kill of the process loses none.
type TraceFile struct {
	log   *slog.Logger
	begun time.Time
	most  int64 // bytes

	mu   sync.Mutex
	file *os.File // nil: ended
	size int64
}

// OpenTraceFile opens or makes the file, which only its owner can read: it holds
// the keys of the jobs' agents. It is closed after the server that writes to it.
func OpenTraceFile(path string, log *slog.Logger) (*TraceFile, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	rec := &TraceFile{log: log, begun: time.Now(), most: maxTraceFile, file: file}
	last := []byte{'\n'}
	if rec.size, err = file.Seek(0, io.SeekEnd); err == nil && rec.size > 0 {
		_, err = file.ReadAt(last, rec.size-1)
	}
	if err == nil && !bytes.Equal(last, []byte{'\n'}) {
		_, err = file.Write([]byte{'\n'}) // an earlier process was killed in a line
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return rec, nil
}

// Record appends a record, with its time since OpenTraceFile. If that fails, or the file
// has become too large, the trace ends with one log line and nothing else does.
func (rec *TraceFile) Record(r trace.Record) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.file == nil {
		return
	}
	r.Seconds = r.At.Sub(rec.begun).Seconds()
	b, err := r.Encode()
	if err == nil {
		_, err = rec.file.Write(b)
	}
	rec.size += int64(len(b))
	switch {
	case err != nil:
		rec.log.Error("the recording ends here, the jobs go on", "file", rec.file.Name(), "error", err)
	case rec.size >= rec.most:
		rec.log.Warn("the recording is full, the jobs go on; start again with another file", "file", rec.file.Name(), "bytes", rec.size)
	default:
		return
	}
	rec.end()
}

// Close ends the trace.
func (rec *TraceFile) Close() error {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.end()
}

func (rec *TraceFile) end() error {
	if rec.file == nil {
		return nil
	}
	err := rec.file.Close()
	rec.file = nil
	return err
}
