package failure

import (
	"slices"
	"testing"
)

func TestTailLines(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
		more bool
	}{
		{"", nil, false},
		{"\n\n", nil, false},
		{"a\nb\n", []string{"a", "b"}, false},
		{"a\nb\nc\n\n", []string{"b", "c"}, true},
		{"10%\r50%\r\nend", []string{"50%", "end"}, false},
		{"\x1b[31mred\x1b[0m\x1b]0;title\x07\a\n\tx\xff", []string{"red", "\tx\uFFFD"}, false},
	} {
		got, more := tailLines([]byte(c.text), 2)
		if !slices.Equal(got, c.want) || more != c.more {
			t.Errorf("%q: %q, %v", c.text, got, more)
		}
	}
}
