package yamlfile

import (
	"reflect"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	got, err := Read([]byte("# a comment\nlisten: 0.0.0.0:29400\nmax-nodes: 7\nhttp-open: true\nhttp-name: [a, \"b\"]\nforget-after: 90s\nx: 1.5\ny: \"1\"\nz: |\n  a\n  b\n"))
	want := map[string]any{
		"listen": "0.0.0.0:29400", "max-nodes": int64(7), "http-open": true, "http-name": []any{"a", "b"}, "forget-after": "90s",
		"x": 1.5, "y": "1", "z": "a\nb\n",
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %#v", err, got)
	}
	for _, text := range []string{"", "# nothing\n", "---\n", "null\n"} {
		if got, err := Read([]byte(text)); len(got) > 0 || err != nil {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	for text, why := range map[string]string{
		"a: 1\na: 2\n":              `line 2: the key "a" appears twice`,
		"a:\n":                      `"a" has no value`,
		"a: {b: 1}\n":               `line 1: "a" is neither a value nor a list`,
		"a: [[1]]\n":                "neither a value nor a list",
		"- a\n":                     "expected lines of KEY: VALUE",
		"word\n":                    "expected lines of KEY: VALUE",
		"a: 1\n---\nb: 2\n":         "a second document",
		"a: &x 1\nb: *x\n":          "neither a value nor a list",
		"a: 99999999999999999999\n": "", // a float, to YAML
		"a: 0xffffffffffffffff\n":   "no number of 64 bits",
		"a: 2026-01-01\n":           "type !!timestamp",
		"a: !!binary eA==\n":        "type !!binary",
		"a: [1\n":                   "yaml:",
		"a: 1\n b: 2\n":             "yaml:",
		"[a]: 1\n":                  "a key is no text",
		"\x00":                      "yaml:",
	} {
		if _, err := Read([]byte(text)); why != "" && (err == nil || !strings.Contains(err.Error(), why)) {
			t.Errorf("%q: %v, expected %q", text, err, why)
		}
	}
}

// FuzzRead: no file breaks the reader.
func FuzzRead(f *testing.F) {
	f.Add([]byte("a: 1\nb: [x, y]\n"))
	f.Add([]byte("a: &x [*x]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		settings, err := Read(text)
		if err != nil && settings != nil {
			t.Errorf("both %v and %v", settings, err)
		}
	})
}
