package printable

import (
	"bytes"
	"encoding/json"
	"errors"
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

// TestJSON: a document without what terminals obey is the same document.
func TestJSON(t *testing.T) {
	for _, text := range []string{"plain", "Zürich €", "\x7f\u009b2J\u202e", "\U000E0001 tag", "\uFFFD"} {
		raw := `{"text": "` + text + `"}`
		safe := JSON([]byte(raw))
		var was, is map[string]string
		if err := errors.Join(json.Unmarshal([]byte(raw), &was), json.Unmarshal(safe, &is)); err != nil || was["text"] != text || is["text"] != text {
			t.Errorf("%q: %s, %v", text, safe, err)
		}
		if Text(string(safe)) != string(safe) {
			t.Errorf("%q stays", safe)
		}
	}
	if safe := JSON([]byte("{\"a\": \"\x9b\"}")); !json.Valid(safe) || bytes.IndexByte(safe, 0x9b) >= 0 {
		t.Errorf("%q", safe)
	}
}
