// Package stacks shows where the workers of a job are: it collects the stacks of a node's
// workers, which faulthandler writes into a file of the agent's on a signal, folds equal ones
// into groups of ranks, and carries the question and its answers through the round's store.
package stacks

import (
	"slices"
	"strconv"
	"strings"

	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
)

// Bounds of one worker's stacks.
const (
	maxFrames   = 64 // of a thread, the innermost ones
	maxThreads  = 16 // of a worker that are shown
	maxFile     = 240
	maxFunction = 120
)

// Frame is one call. Its texts come from the worker; they are printable and bounded.
type Frame struct {
	File     string `json:"file"`
	Line     int    `json:"line"` // 0: not known
	Function string `json:"function"`
}

// user reports whether a frame is of the user's code: neither of an installed package nor of
// Python's own library.
func (f Frame) user() bool {
	if strings.HasPrefix(f.File, "<") {
		return false
	}
	parts := strings.Split(f.File, "/")
	for i, part := range parts {
		switch {
		case part == "site-packages" || part == "dist-packages":
			return false
		case i > 0 && i+1 < len(parts) && strings.HasPrefix(part, "python") && strings.HasPrefix(parts[i-1], "lib"):
			return false
		}
	}
	return true
}

// Thread is the stack of one thread.
type Thread struct {
	Main   bool    `json:"main"`   // the one that took the signal, which is the main thread unless that blocks it
	Frames []Frame `json:"frames"` // the innermost first
	Cut    bool    `json:"cut"`    // there are outer frames that were left out
}

func (t Thread) user() bool {
	return slices.ContainsFunc(t.Frames, Frame.user)
}

// parsed is a text of faulthandler.
type parsed struct {
	threads []Thread
	whole   bool // the thread that took the signal has a frame, or has none at all
}

// parse reads faulthandler's text about all threads of a process. If a thread occurs twice, since
// the text has two answers, the last one counts. It skips lines that it does not know: the text
// may be anything.
func parse(text string) parsed {
	var p parsed
	at := make(map[string]int) // by the thread's number in the text
	current := -1
	for line := range strings.Lines(text) {
		line, ended := strings.CutSuffix(line, "\n")
		if id, main, ok := threadLine(line); ok {
			if i, again := at[id]; again {
				p.threads[i] = Thread{Main: main}
				current = i
			} else if len(p.threads) < maxParsed {
				current = len(p.threads)
				at[id] = current
				p.threads = append(p.threads, Thread{Main: main})
			} else {
				current = -1
			}
			continue
		}
		if current < 0 || !ended {
			continue
		}
		t := &p.threads[current]
		if f, ok := frameLine(line); ok {
			if len(t.Frames) < maxFrames {
				t.Frames = append(t.Frames, f)
			} else {
				t.Cut = true
			}
			p.whole = p.whole || t.Main
		} else if text := strings.TrimSpace(line); text == "..." {
			t.Cut = true
		} else if text == "<no Python frame>" {
			p.whole = p.whole || t.Main
		}
	}
	return p
}

// maxParsed bounds the threads of a text; faulthandler writes 100.
const maxParsed = 256

func threadLine(line string) (id string, main, ok bool) {
	rest, ok := strings.CutSuffix(line, " (most recent call first):")
	if !ok {
		return "", false, false
	}
	if rest == "Stack" { // of the thread that took the signal alone
		return rest, true, true
	}
	if id, main = strings.CutPrefix(rest, "Current thread 0x"); !main {
		if id, ok = strings.CutPrefix(rest, "Thread 0x"); !ok {
			return "", false, false
		}
	}
	id, _, _ = strings.Cut(id, " ") // a name may follow
	return id, main, len(id) <= 16
}

func frameLine(line string) (f Frame, ok bool) {
	rest, ok := strings.CutPrefix(line, "  File ")
	if !ok {
		return f, false
	}
	at := strings.LastIndex(rest, ", line ") // a name may hold quotes
	if at < 0 {
		return f, false
	}
	number, function, ok := strings.Cut(rest[at+len(", line "):], " in ")
	if !ok {
		return f, false
	}
	f.Line, _ = strconv.Atoi(number) // else it is "???"
	return newFrame(strings.Trim(rest[:at], `"`), max(f.Line, 0), function), true
}

// newFrame makes a frame of texts from elsewhere. Of a long path the end is kept.
func newFrame(file string, line int, function string) Frame {
	file = printable.Text(file)
	if len(file) > maxFile {
		file = "..." + strings.ToValidUTF8(file[len(file)-maxFile+3:], "")
	}
	return Frame{File: file, Line: line, Function: pack.CutText(printable.Text(function), maxFunction)}
}

// thatMatter are the main thread and the others that run code of the user's, the main one
// first: pools and monitors of libraries that wait for work say nothing.
func thatMatter(all []Thread) []Thread {
	var list []Thread
	for _, t := range all {
		if t.Main {
			list = append(list, t)
		}
	}
	for _, t := range all {
		if !t.Main && t.user() && len(list) < maxThreads {
			list = append(list, t)
		}
	}
	if len(list) == 0 && len(all) > 0 {
		list = all[len(all)-1:] // the oldest thread
	}
	return list
}
