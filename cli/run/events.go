package run

import (
	_ "embed"
	"errors"
	"io"
	"log/slog"

	rallypoint "rallypoint"
	"rallypoint/agent/telemetry"
	"rallypoint/internal/linequeue"
	"rallypoint/internal/otlp"
)

// eventHandlerScript hands events to a handler of torch.
//
//go:embed event_handler.py
var eventHandlerScript string

// setEvents connects the agent to the handlers of its events and of the rendezvous events. Torch
// gives the latter to the handler dynamic_rendezvous, which drops them unless the program has
// replaced it. close delivers the remaining events.
func (c *config) setEvents(o *options, interpreter string, env []string, stderr *linequeue.Queue, log *slog.Logger) (close func(), err error) {
	name := o.eventHandler
	if name == "dynamic_rendezvous" {
		name = "null"
	}
	var closeEvents, closeRdzv func()
	c.spec.Events, closeEvents, err = eventSink("event-log-handler", name, interpreter, env, stderr, log)
	if err != nil {
		return nil, err
	}
	c.spec.RdzvEvents, closeRdzv, err = eventSink("rdzv-event-log-handler", o.rdzvEventHandler, interpreter, env, stderr, log)
	if err != nil {
		closeEvents()
		return nil, err
	}
	return func() { closeEvents(); closeRdzv() }, nil
}

// setTraces connects the agent to the collector of its traces. close sends the last spans.
func (c *config) setTraces(log *slog.Logger) (close func()) {
	if !c.traces.Enabled() {
		return func() {}
	}
	exporter := otlp.NewExporter(c.traces, rallypoint.Version(), telemetry.TraceResource(c.spec.Host), log)
	c.spec.Spans, c.spec.Expose = exporter, exporter.Expose
	return exporter.Close
}

// eventSink returns where events go: nowhere, to stderr, or to a handler that torch knows by that
// name. option is the option with the name.
func eventSink(option, name, interpreter string, env []string, stderr *linequeue.Queue, log *slog.Logger) (to io.Writer, close func(), err error) {
	switch name {
	case "null":
		return nil, func() {}, nil
	case "console":
		return stderr, func() {}, nil
	}
	h, err := startHelper(interpreter, eventHandlerScript, env, name)
	if why := errHelper(""); errors.As(err, &why) {
		return nil, nil, usagef("argument --%s: there is no handler %q beside null and console (%s)", option, name, why)
	}
	if err != nil {
		return nil, nil, err
	}
	events := linequeue.New(h.conn, "the event handler "+name)
	events.ReportElsewhere(func(text string) { log.Warn(text) })
	return events, func() { events.Flush(); h.close(pluginPatience) }, nil
}
