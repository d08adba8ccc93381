package telemetry

import (
	"bytes"
	"io"
	"os"
	"time"
)

// sinkPatience is how long an event may wait for a reader that is behind by all that a
// pipe holds.
const sinkPatience = time.Second

// PipeSink writes events as lines to a pipe or socket whose reader may be slow, hang
// or be gone: then the events from there on are lost. It is for one goroutine.
type PipeSink struct {
	File *os.File // which has deadlines
	Lost func(error)

	lost bool
}

// Record implements Sink.
func (s *PipeSink) Record(event []byte) {
	if s.lost {
		return
	}
	_ = s.File.SetWriteDeadline(time.Now().Add(sinkPatience))
	if _, err := s.File.Write(bytes.Join([][]byte{event, nil}, []byte{'\n'})); err != nil {
		s.lost = true
		s.Lost(err)
	}
}

// Sink takes events or metrics, one JSON object a call without a line feed; *os.File
// and the like fit by way of LineSink.
type Sink interface{ Record(event []byte) }

// LineSink writes each event as a line.
type LineSink struct{ W io.Writer }

// Record implements Sink; what cannot be written is lost.
func (s LineSink) Record(event []byte) { _, _ = s.W.Write(append(event[:len(event):len(event)], '\n')) }
