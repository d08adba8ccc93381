package main

import (
	"log/slog"
	"strings"
	"testing"
)

// TestLogOfOthersTexts: a program that writes the records to a terminal as they are is safe.
func TestLogOfOthersTexts(t *testing.T) {
	const evil = "n\x1b]0;owned\x07\r"
	before := logs.level.Level()
	logs.level.Set(slog.LevelError)
	defer logs.level.Set(before)
	for {
		if _, _, ok := takeRecord(); !ok {
			break
		}
	}
	logger.Error("node "+evil+" is refused", "node", evil+"\nall is well")
	r, _, ok := takeRecord()
	if !ok || strings.ContainsAny(r.text, "\x1b\x07\r\n") || strings.Count(r.text, "]0;owned") != 2 {
		t.Errorf("%v, %q", ok, r.text)
	}
}
