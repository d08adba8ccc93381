// Package check reads the verdict of a command that examines a node.
package check

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
)

// The exit codes of a check. Every other one, such as 75 (EX_TEMPFAIL), and a signal mean that it
// cannot tell.
const (
	codeFit   = 0
	codeUnfit = 1
)

// The shell's exit codes for a command that it has found but cannot run, or has not found.
const (
	codeNotRun   = 126
	codeNotFound = 127
)

// State is the finding of a check.
type State int

// The states. The zero value takes no node out.
const (
	Unknown State = iota // the check cannot tell
	Fit
	Unfit
)

const (
	maxReason   = 32  // bytes
	maxText     = 512 // bytes
	reasonOther = "other"
)

// Verdict is a check's answer.
type Verdict struct {
	State  State
	Reason string // of [a-z0-9_], at most 32 bytes; "" unless State is Unfit
	Text   string // printable, at most 512 bytes; may be empty
	NotRun bool   // the shell did not run the command: it examines nothing
}

func (v Verdict) String() string {
	if v.Text == "" {
		return v.Reason
	}
	return v.Reason + ": " + v.Text
}

// Judge makes the verdict of a command that has ended. code is its exit code, or minus the signal
// that ended it. The reason is the last line of output, its stdout, or name, its base name, if it
// wrote none.
func Judge(code int, output []byte, name string) Verdict {
	var said struct{ Reason, Text string }
	if line := lastLine(output); json.Unmarshal(line, &said) != nil {
		said.Reason, said.Text = "", string(line)
	}
	text := bounded(said.Text)
	switch code {
	case codeFit:
		return Verdict{State: Fit, Text: text}
	case codeUnfit:
		reason := cmp.Or(said.Reason, name)
		if !validReason(reason) {
			reason = reasonOther
		}
		return Verdict{State: Unfit, Reason: reason, Text: text}
	}
	return Verdict{Text: cmp.Or(text, ending(code)), NotRun: code == codeNotRun || code == codeNotFound}
}

func ending(code int) string {
	if code < 0 {
		return "it was ended by " + unix.SignalName(unix.Signal(-code))
	}
	return fmt.Sprintf("it exited with code %d", code)
}

func lastLine(output []byte) []byte {
	output = bytes.TrimSpace(output)
	return bytes.TrimSpace(output[bytes.LastIndexByte(output, '\n')+1:])
}

func validReason(reason string) bool {
	return reason != "" && len(reason) <= maxReason && strings.Trim(reason, "abcdefghijklmnopqrstuvwxyz0123456789_") == ""
}

// bounded makes a text fit for a terminal, and cuts it between two characters.
func bounded(text string) string { return pack.CutText(printable.Text(text), maxText) }
