package printable

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "",
		"host7 pid 12":           "host7 pid 12",
		"Jürgen 日本":              "Jürgen 日本",
		"a\nb\tc\u00a0d":         "a b c d",
		"\x1b[2Jx\x00\x7f\u009b": "\uFFFD[2Jx\uFFFD\uFFFD\uFFFD",
		"a\u202eb\xff":           "a\uFFFDb\uFFFD",
	} {
		if got := Text(text); got != want {
			t.Errorf("%q became %q, expected %q", text, got, want)
		}
	}
}

// TestLog writes a DEL, alone and beside what is quoted, as text and as JSON.
func TestLog(t *testing.T) {
	const id = "a\x7f\"b"
	var text, asJSON strings.Builder
	slog.New(slog.NewTextHandler(Log(&text), nil)).Info("a\x7fb", "run", "c\x7f", "id", id)
	slog.New(slog.NewJSONHandler(Log(&asJSON), nil)).Info("a\x7fb", "run", "c\x7f", "id", id)
	if strings.Contains(text.String()+asJSON.String(), "\x7f") || !strings.Contains(text.String(), `run=c\u007f`) {
		t.Errorf("%q, %q", &text, &asJSON)
	}
	var got map[string]string
	if err := json.Unmarshal([]byte(asJSON.String()), &got); err != nil || got["id"] != id || got["run"] != "c\x7f" {
		t.Errorf("%v, %v", got, err)
	}
}
