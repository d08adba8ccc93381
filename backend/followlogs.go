package backend

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"rallypoint/agent/logs"
	"rallypoint/core/control"
	"rallypoint/core/secret"
)

// LogLine is a line of a stream, fit for a terminal.
type LogLine struct {
	Ranks []int // several: they write into one file
	Text  string
}

// FollowLogs delivers the output of the workers of a run's round, of one rank or LogsAll, from
// the last lines on, until ctx or the round ends. begun first gets the result of AskLogs without
// its streams. See AskLogs.
func FollowLogs(ctx context.Context, run *control.RunStatus, token *secret.Token, rank int, begun func(*Logs), show func(LogLine)) error {
	r, parts, stop, err := askLogs(ctx, run, token, rank, true)
	if err != nil {
		return err
	}
	defer stop()
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = parts.Close(last)
	}()
	begun(r)
	followed := make(map[string]*lineCutter)
	for {
		text, err := parts.Next(ctx)
		if err != nil { // the round has ended, or the user has
			for _, c := range followed {
				c.flush(show)
			}
			return nil
		}
		n, err := logs.DecodeNode(text)
		if err != nil {
			continue
		}
		for _, p := range n.Parts {
			key := fmt.Sprint(p.Ranks, p.Stream)
			c := followed[key]
			if c == nil {
				c = &lineCutter{ranks: p.Ranks}
				followed[key] = c
			}
			c.take(p, show)
		}
	}
}

type lineCutter struct {
	ranks   []int
	begun   bool
	next    int64  // offset of what comes next
	partial []byte // of a line that has begun
}

func (c *lineCutter) take(p logs.Part, show func(LogLine)) {
	line := func(text string) { show(LogLine{c.ranks, text}) }
	text := p.Text
	switch {
	case p.Why != "":
		line("(" + p.Stream + " is not shown: " + p.Why + ")")
		return
	case !c.begun && p.At > 0: // the rest of a line says little
		if at := bytes.IndexByte(text, '\n'); at >= 0 {
			text = text[at+1:]
		}
	case c.begun && p.At > c.next:
		c.flush(show)
		line(fmt.Sprintf("(%d bytes are left out: they came too fast)", p.At-c.next))
	}
	c.begun, c.next = true, p.At+int64(len(p.Text))
	c.partial = append(c.partial, text...)
	end := bytes.LastIndexByte(c.partial, '\n')
	if end < 0 && len(c.partial) > logs.Kept {
		end = len(c.partial) - 1
	}
	for l := range bytes.Lines(c.partial[:end+1]) {
		line(logs.Text(bytes.TrimSuffix(l, []byte("\n"))))
	}
	c.partial = append(c.partial[:0], c.partial[end+1:]...)
}

func (c *lineCutter) flush(show func(LogLine)) {
	if len(c.partial) > 0 {
		show(LogLine{c.ranks, logs.Text(c.partial)})
		c.partial = nil
	}
}
