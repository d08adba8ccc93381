package cli

import (
	_ "embed"
	"errors"
	"io"
	"log/slog"

	"rallypoint/core/agent"
)

// eventHandlerScript hands events to a handler of torch.
//
//go:embed event_handler.py
var eventHandlerScript string

// eventSink is where events go: nowhere, to stderr, or to a handler that torch knows
// under a name (A95). close hands over what is left.
func eventSink(name, interpreter string, env []string, stderr io.Writer, log *slog.Logger) (sink agent.EventSink, close func(), err error) {
	switch name {
	case "null", "dynamic_rendezvous":
		return nil, func() {}, nil
	case "console":
		return agent.LineSink{W: stderr}, func() {}, nil
	}
	h, err := startHelper(interpreter, eventHandlerScript, env, name)
	if why := errHelper(""); errors.As(err, &why) {
		return nil, nil, usagef("argument --event-log-handler: there is no handler %q beside null and console (%s)", name, why)
	}
	if err != nil {
		return nil, nil, err
	}
	lost := func(err error) { log.Warn("the event handler " + name + " takes no more events: " + err.Error()) }
	return &agent.PipeSink{File: h.conn, Lost: lost}, func() { h.close(pluginPatience) }, nil
}
