package cli

import (
	_ "embed"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"rallypoint/core/agent"
)

// eventHandlerScript hands events to a handler of torch.
//
//go:embed event_handler.py
var eventHandlerScript string

// handlerPatience bounds how long an interpreter may take to import torch, and a
// handler to take the last events.
const handlerPatience = time.Minute

// eventSink is where events go: nowhere, to stderr, or to a handler that torch knows
// under a name (A95). close hands over what is left.
func eventSink(name, interpreter string, env []string, stderr io.Writer) (sink agent.EventSink, close func(), err error) {
	switch name {
	case "null", "dynamic_rendezvous":
		return nil, func() {}, nil
	case "console":
		return agent.LineSink{W: stderr}, func() {}, nil
	}
	unknown := func(why string) error {
		return usagef("argument --event-log-handler: there is no handler %q beside null and console (%s)", name, why)
	}
	if _, err := exec.LookPath(interpreter); err != nil {
		return nil, nil, unknown("torch was not asked: " + err.Error())
	}
	// Pipes of the system, and no copying by exec: the interpreter leaves a child with
	// them, which exec would wait for.
	input, write, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	read, output, err := os.Pipe()
	if err != nil {
		_, _ = input.Close(), write.Close()
		return nil, nil, err
	}
	cmd := exec.Command(interpreter, "-c", eventHandlerScript, name)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, input, output, os.Stderr
	failed := func(err error) (agent.EventSink, func(), error) {
		_, _ = write.Close(), read.Close()
		return nil, nil, err
	}
	err = cmd.Start()
	_, _ = input.Close(), output.Close()
	if err != nil {
		return failed(err)
	}
	_ = read.SetReadDeadline(time.Now().Add(handlerPatience))
	answer := make([]byte, 200)
	n, _ := read.Read(answer)
	if text := strings.TrimSpace(string(answer[:n])); text != "ok" {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return failed(unknown("torch: " + text))
	}
	if err := cmd.Wait(); err != nil {
		return failed(err)
	}
	return agent.LineSink{W: write}, func() {
		_ = write.Close()
		_ = read.SetReadDeadline(time.Now().Add(handlerPatience))
		_, _ = io.Copy(io.Discard, read) // ends with the handler
		_ = read.Close()
	}, nil
}
