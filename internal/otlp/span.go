// Package otlp sends spans to a collector: OpenTelemetry's protocol over HTTP, in JSON. It waits for
// nobody: what finds no room, or no collector, is counted and lost.
package otlp

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// A TraceID names a trace, a SpanID a span of it.
type (
	TraceID [16]byte
	SpanID  [8]byte
)

// NewTraceID and NewSpanID draw a random id.
func NewTraceID() (id TraceID) { _, _ = rand.Read(id[:]); return id }
func NewSpanID() (id SpanID)   { _, _ = rand.Read(id[:]); return id }

// Span is one span, of kind "internal", that has ended.
type Span struct {
	Trace      TraceID
	ID         SpanID
	Parent     SpanID // zero: none
	Name       string
	Start, End time.Time
	Attributes []Attribute
	Events     []Event
	Links      []Link
	Error      string // what failed; "": nothing did
}

// Event is a moment of a span.
type Event struct {
	Name       string
	At         time.Time
	Attributes []Attribute
}

// Link leads to a span of another trace.
type Link struct {
	Trace TraceID
	Span  SpanID
}

// Attribute is a key with a value. A value is a string, an int64, a float64 or a bool.
type Attribute struct {
	Key   string
	Value any
}

// Limits of what one span carries.
const (
	maxText   = 8 << 10 // bytes of a text
	maxEvents = 32      // the first ones
)

// The messages of opentelemetry/proto/collector/trace/v1/trace_service.proto as its mapping to JSON
// has them: names in lowerCamelCase, ids in hexadecimal digits, enums and small numbers as numbers,
// those of 64 bits as strings.
type (
	exportRequest struct {
		ResourceSpans []resourceSpans `json:"resourceSpans"`
	}
	resourceSpans struct {
		Resource   resource     `json:"resource"`
		ScopeSpans []scopeSpans `json:"scopeSpans"`
	}
	resource struct {
		Attributes []keyValue `json:"attributes"`
	}
	scopeSpans struct {
		Scope scope      `json:"scope"`
		Spans []jsonSpan `json:"spans"`
	}
	scope struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	jsonSpan struct {
		TraceID       string      `json:"traceId"`
		SpanID        string      `json:"spanId"`
		Parent        string      `json:"parentSpanId,omitempty"`
		Name          string      `json:"name"`
		Kind          int         `json:"kind"`
		Start         string      `json:"startTimeUnixNano"`
		End           string      `json:"endTimeUnixNano"`
		Attributes    []keyValue  `json:"attributes,omitempty"`
		Events        []jsonEvent `json:"events,omitempty"`
		DroppedEvents int         `json:"droppedEventsCount,omitempty"`
		Links         []jsonLink  `json:"links,omitempty"`
		Status        *status     `json:"status,omitempty"`
	}
	jsonEvent struct {
		Time       string     `json:"timeUnixNano"`
		Name       string     `json:"name"`
		Attributes []keyValue `json:"attributes,omitempty"`
	}
	jsonLink struct {
		TraceID string `json:"traceId"`
		SpanID  string `json:"spanId"`
	}
	status struct {
		Message string `json:"message,omitempty"`
		Code    int    `json:"code"`
	}
	keyValue struct {
		Key   string         `json:"key"`
		Value map[string]any `json:"value"`
	}
)

const (
	kindInternal = 1
	statusError  = 2
)

func encode(of []keyValue, by scope, spans []Span) ([]byte, error) {
	all := make([]jsonSpan, len(spans))
	for i := range spans {
		all[i] = spans[i].json()
	}
	return json.Marshal(exportRequest{[]resourceSpans{{resource{of}, []scopeSpans{{by, all}}}}})
}

func (s *Span) json() jsonSpan {
	j := jsonSpan{
		TraceID: hex.EncodeToString(s.Trace[:]), SpanID: hex.EncodeToString(s.ID[:]), Name: text(s.Name), Kind: kindInternal,
		Start: nanoseconds(s.Start), End: nanoseconds(s.End), Attributes: keyValues(s.Attributes),
	}
	if s.Parent != (SpanID{}) {
		j.Parent = hex.EncodeToString(s.Parent[:])
	}
	if s.Error != "" {
		j.Status = &status{text(s.Error), statusError}
	}
	j.DroppedEvents = max(0, len(s.Events)-maxEvents)
	for _, e := range s.Events[:len(s.Events)-j.DroppedEvents] {
		j.Events = append(j.Events, jsonEvent{nanoseconds(e.At), text(e.Name), keyValues(e.Attributes)})
	}
	for _, l := range s.Links {
		j.Links = append(j.Links, jsonLink{hex.EncodeToString(l.Trace[:]), hex.EncodeToString(l.Span[:])})
	}
	return j
}

func keyValues(attributes []Attribute) []keyValue {
	values := make([]keyValue, 0, len(attributes))
	for _, a := range attributes {
		value := map[string]any{}
		switch v := a.Value.(type) {
		case string:
			value["stringValue"] = text(v)
		case int64:
			value["intValue"] = strconv.FormatInt(v, 10)
		case float64:
			value["doubleValue"] = v
		case bool:
			value["boolValue"] = v
		}
		values = append(values, keyValue{a.Key, value})
	}
	return values
}

// text bounds a text that may come from a worker, which JSON has in UTF-8.
func text(s string) string {
	if len(s) > maxText {
		s = s[:maxText-len("…")] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

func nanoseconds(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }
