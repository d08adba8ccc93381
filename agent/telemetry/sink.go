package telemetry

import (
	"bytes"
	"io"
	"os"
	"time"
)

// sinkPatience is how long an event may wait for a reader that has let the pipe fill up.
const sinkPatience = time.Second

// PipeSink writes events as lines to a pipe or socket. If the reader is too slow, hangs or is
// gone, later events are lost. It is for one goroutine.
type PipeSink struct {
	File *os.File // which has deadlines
	Lost func(error)

	lost bool
}

// Record implements Sink.
func (p *PipeSink) Record(event []byte) {
	if p.lost {
		return
	}
	_ = p.File.SetWriteDeadline(time.Now().Add(sinkPatience))
	if _, err := p.File.Write(bytes.Join([][]byte{event, nil}, []byte{'\n'})); err != nil {
		p.lost = true
		p.Lost(err)
	}
}

// Sink takes events or metrics, one JSON object a call without a line feed; *os.File
// and the like fit by way of LineSink.
type Sink interface{ Record(event []byte) }

// LineSink writes each event as a line.
type LineSink struct{ W io.Writer }

// Record implements Sink. A line that cannot be written is lost.
func (l LineSink) Record(event []byte) { _, _ = l.W.Write(append(event[:len(event):len(event)], '\n')) }
