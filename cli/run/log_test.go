package run

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// TestLogOfOthersTexts: what nodes and strangers call themselves reaches the terminal as
// characters that can be seen, and makes no line of its own.
func TestLogOfOthersTexts(t *testing.T) {
	const evil = "n\x1b]0;owned\x07\x1b[2J\r\n<I> all is well"
	for name, say := range map[string]func(*slog.Logger){
		"attribute": func(l *slog.Logger) {
			l.Error("refused a node", "node", evil, "why", slog.GroupValue(slog.String("text", evil)))
		},
		"attribute ahead": func(l *slog.Logger) { l.With("node", evil).Error("refused a node") },
		"message":         func(l *slog.Logger) { l.Error("refused " + strings.ReplaceAll(evil, "\r\n", " ")) },
	} {
		var b bytes.Buffer
		say(NewLog(&b, slog.LevelInfo, false))
		line, rest, _ := strings.Cut(b.String(), "\n")
		if rest != "" || strings.ContainsAny(line, "\x1b\x07\r") || !strings.Contains(line, "]0;owned") {
			t.Errorf("%s: %q", name, b.String())
		}
	}
}
