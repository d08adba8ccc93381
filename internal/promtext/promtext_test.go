package promtext

import "testing"

func TestLabels(t *testing.T) {
	for value, want := range map[string]string{
		"job-7":               `job-7`,
		"Jürgen 日本":           `Jürgen 日本`,
		"a\\b\"c\nd":          `a\\b\"c\nd`,
		"\x1b[2J\x7f\u009b\t": `\\x1b[2J\\x7f\\u009b\\t`,
		"a\u202eb\xff'":       "a\\\\u202eb\uFFFD'",
	} {
		var b Buffer
		b.Sample("m", 1, "run", value)
		if got := string(b.Bytes()); got != `m{run="`+want+"\"} 1\n" {
			t.Errorf("%q became %q, expected %q", value, got, want)
		}
	}
}
