package otlp

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"rallypoint/internal/background"
	"rallypoint/internal/backoff"
	"rallypoint/internal/printable"
	"rallypoint/internal/promtext"
	"rallypoint/internal/wake"
	"rallypoint/internal/wording"
)

// Limits of an exporter.
const (
	maxWaiting = 1024 // spans that wait
	maxBatch   = 128  // spans of a request
	maxAnswer  = 64 << 10

	linger       = 500 * time.Millisecond // for more spans of a request
	firstPause   = time.Second            // before a request is tried again
	longestPause = 30 * time.Second

	// closePatience bounds Close.
	closePatience = 2 * time.Second
)

// Exporter sends spans in a goroutine of its own. A nil Exporter does nothing.
type Exporter struct {
	config   Config
	scope    scope
	resource []keyValue
	client   *http.Client
	log      *slog.Logger
	stop     func()
	news     wake.Signal
	closing  chan struct{}
	ended    chan struct{}

	mu         sync.Mutex
	waiting    []Span
	sent, lost uint64
	told       bool // that something goes wrong
}

// NewExporter begins to send spans. version is the program's, own what it knows of the resource, which
// the environment overrules. log hears once what goes wrong, and in the end how many spans are lost.
func NewExporter(c Config, version string, own []Attribute, log *slog.Logger) *Exporter {
	attributes := append([]Attribute{
		{"service.name", "rallypoint"}, {"service.version", version},
		{"telemetry.sdk.name", "rallypoint"}, {"telemetry.sdk.language", "go"}, {"telemetry.sdk.version", version},
	}, own...)
	for _, a := range c.resource {
		attributes = append(slices.DeleteFunc(attributes, func(b Attribute) bool { return a.Key == b.Key }), a)
	}
	e := &Exporter{
		config: c, scope: scope{"rallypoint", version}, resource: keyValues(attributes), log: log,
		news: wake.New(), closing: make(chan struct{}), ended: make(chan struct{}),
		client: &http.Client{
			Transport:     c.transport(),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the headers are for this host
		},
	}
	e.stop = background.Run(context.Background(), e.run)
	return e
}

// Record takes a span. It never waits.
func (e *Exporter) Record(s Span) {
	e.mu.Lock()
	full := len(e.waiting) >= maxWaiting
	if !full {
		e.waiting = append(e.waiting, s)
	}
	e.mu.Unlock()
	if full {
		e.lose(1, errors.New("too many wait"))
	}
	e.news.Set()
}

// Close sends what waits, for closePatience at most, and ends the exporter.
func (e *Exporter) Close() {
	if e == nil {
		return
	}
	close(e.closing)
	late := time.NewTimer(closePatience)
	defer late.Stop()
	select {
	case <-e.ended:
	case <-late.C:
	}
	e.stop()
	e.client.CloseIdleConnections()
	e.mu.Lock()
	left := len(e.waiting)
	e.mu.Unlock()
	e.lose(left, errors.New("the collector did not take them before the end"))
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lost > 0 {
		e.log.Warn(fmt.Sprintf("%d of %s were not sent to %s", e.lost, wording.Count(int(e.sent+e.lost), "span", "spans"), &e.config))
	}
}

// Expose writes the metrics of an exporter.
func (e *Exporter) Expose(b *promtext.Buffer) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	const spans = "rallypoint_agent_spans_total"
	b.Family(spans, "counter", "Spans of the agent's traces, by what became of them.")
	b.Sample(spans, float64(e.sent), "outcome", "sent")
	b.Sample(spans, float64(e.lost), "outcome", "lost")
}

func (e *Exporter) lose(n int, why error) {
	if n == 0 {
		return
	}
	e.mu.Lock()
	e.lost += uint64(n)
	e.mu.Unlock()
	e.tell(fmt.Sprintf("%s lost: %v", wording.Count(n, "span is", "spans are"), why))
}

// tell logs the first thing that goes wrong.
func (e *Exporter) tell(text string) {
	e.mu.Lock()
	told := e.told
	e.told = true
	e.mu.Unlock()
	if !told {
		e.log.Warn(fmt.Sprintf("traces to %s: %s; from now on what is lost is only counted", &e.config, text))
	}
}

// run sends spans until Close has been called and none waits, or ctx ends.
func (e *Exporter) run(ctx context.Context) {
	defer close(e.ended)
	pause := backoff.New(firstPause, longestPause)
	for {
		more := e.await(ctx, e.news, nil) && e.await(ctx, nil, time.After(linger))
		for batch := e.take(); len(batch) > 0; batch = e.take() {
			if e.deliver(ctx, batch, pause); ctx.Err() != nil {
				return
			}
		}
		if !more {
			return
		}
	}
}

// await waits for one of two events. It returns false when Close has been called.
func (e *Exporter) await(ctx context.Context, news <-chan struct{}, at <-chan time.Time) bool {
	select {
	case <-news:
		return true
	case <-at:
		return true
	case <-e.closing:
	case <-ctx.Done():
	}
	return false
}

func (e *Exporter) take() []Span {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := min(len(e.waiting), maxBatch)
	batch := e.waiting[:n:n]
	e.waiting = e.waiting[n:]
	return batch
}

// deliver sends spans, again while the collector says that this may help. Once Close has been called
// it tries once.
func (e *Exporter) deliver(ctx context.Context, batch []Span, pause *backoff.Backoff) {
	body, err := encode(e.resource, e.scope, batch)
	if err != nil {
		e.lose(len(batch), err)
		return
	}
	for {
		rejected, after, err := e.post(ctx, body)
		if err == nil || after < 0 {
			rejected = min(rejected, len(batch))
			e.lose(rejected, err)
			e.mu.Lock()
			e.sent += uint64(len(batch) - rejected)
			e.mu.Unlock()
			pause.Reset()
			return
		}
		select {
		case <-e.closing:
			e.lose(len(batch), err)
			return
		default:
		}
		e.tell(fmt.Sprintf("%v; trying again", err))
		e.await(ctx, nil, time.After(max(after, pause.Next())))
	}
}

// post sends a request. It returns how many spans the collector did not want, and with an error after
// how long the request may be sent again, < 0: never.
func (e *Exporter) post(ctx context.Context, body []byte) (rejected int, after time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.config.timeout)
	defer cancel()
	headers := e.config.headers.Clone()
	headers.Set("Content-Type", "application/json")
	if headers.Get("User-Agent") == "" {
		headers.Set("User-Agent", "Rallypoint-OTLP-Exporter/"+e.scope.Version)
	}
	if e.config.gzip {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, _ = z.Write(body) // a buffer takes all
		_ = z.Close()
		body = packed.Bytes()
		headers.Set("Content-Encoding", "gzip")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.config.url.String(), bytes.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	request.Header = headers
	response, err := e.client.Do(request)
	if err != nil {
		if of, ok := errors.AsType[*url.Error](err); ok { // whose text has the URL, which may have a password
			err = of.Err
		}
		return 0, 0, e.late(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	switch code := response.StatusCode; {
	case code == http.StatusTooManyRequests || code == http.StatusBadGateway || code == http.StatusServiceUnavailable || code == http.StatusGatewayTimeout:
		seconds, _ := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 31)
		return 0, min(time.Duration(seconds)*time.Second, longestPause), errors.New(response.Status)
	case code >= 300 && code <= 399:
		return maxBatch, -1, errors.New(printable.Text(response.Status + ", which is not followed: name the collector itself"))
	case code < 200 || code > 299:
		return maxBatch, -1, errors.New(printable.Text(response.Status + " " + string(answer[:min(len(answer), 200)])))
	case err != nil:
		return 0, 0, e.late(err)
	}
	return partial(answer)
}

// late adds to an error of a late answer how long that was waited for.
func (e *Exporter) late(err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("no answer within %v of the end of this agent", closePatience)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer within %v", e.config.timeout)
	}
	return err
}

// partial reads the answer to a request of which perhaps a part was taken.
func partial(answer []byte) (rejected int, after time.Duration, err error) {
	var a struct {
		Partial struct {
			Rejected json.RawMessage `json:"rejectedSpans"` // a number, or one in a string
			Message  string          `json:"errorMessage"`
		} `json:"partialSuccess"`
	}
	if json.Unmarshal(answer, &a) != nil {
		return 0, 0, nil // an empty one, or protobuf
	}
	n, _ := strconv.ParseUint(string(bytes.Trim(a.Partial.Rejected, `"`)), 10, 31)
	if n == 0 {
		return 0, 0, nil
	}
	return int(n), -1, errors.New("the collector has not taken all: " + printable.Text(a.Partial.Message[:min(len(a.Partial.Message), 200)]))
}
