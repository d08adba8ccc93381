package printable

import "testing"

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
