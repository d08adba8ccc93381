package telemetry

import "io"

// Sink takes events or metrics, one JSON object a call without a line feed. It must not
// wait: the agent would.
type Sink interface{ Record(event []byte) }

// LineSink writes each event as a line to a queue, such as a linequeue.Queue.
type LineSink struct{ W io.Writer }

// Record implements Sink.
func (l LineSink) Record(event []byte) { _, _ = l.W.Write(append(event[:len(event):len(event)], '\n')) }
