package cli

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Moves of a terminal's cursor.
const (
	clearScreen = "\x1b[H\x1b[2J"
	moveHome    = "\x1b[H"
	clearLine   = "\x1b[K"
	clearRest   = "\x1b[J"
)

// watch shows the status at once and at each tick until ctx ends. A control plane
// that does not answer is shown as such: it may come, or come back.
func watch(ctx context.Context, q statusQuery, show *statusPrinter, ticks <-chan time.Time) error {
	first := true
	for {
		raw, st, err := q.fetch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		text := ""
		switch {
		case err == nil:
			text = string(show.text(raw, st))
		case show.json:
			text = fmt.Sprintf("{\"error\": %s}\n", jsonText(err.Error()))
		default:
			text = time.Now().In(show.terminal.zone).Format(time.TimeOnly) + "  " + wrap(err.Error(), show.terminal.width, 10) + "\n"
		}
		if _, err := show.out.Write([]byte(frameOf(text, first, show))); err != nil {
			return failed("printing the status: %w", err)
		}
		first = false
		select {
		case <-ticks:
		case <-ctx.Done():
			return nil
		}
	}
}

// frameOf puts a status where the last one was: over it on a terminal, after an
// empty line elsewhere.
func frameOf(text string, first bool, show *statusPrinter) string {
	switch {
	case show.json:
		return text
	case !show.terminal.interactive && first:
		return text
	case !show.terminal.interactive:
		return "\n" + text
	}
	start := moveHome
	if first {
		start = clearScreen
	}
	return start + strings.ReplaceAll(text, "\n", clearLine+"\n") + clearRest
}
