package wording

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 nodes", 1: "1 node", 2: "2 nodes"} {
		if got := Count(n, "node", "nodes"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"a", "", 1}, {"", "abc", 3}, {"abc", "abc", 0}, {"abc", "abd", 1}, {"abc", "ac", 1}, {"ac", "abc", 1},
		{"kitten", "sitting", 3}, {"nnode", "nnodes", 1}, {"abc", "acb", 1}, {"stauts", "status", 1}, {"ab", "ba", 1}, {"ca", "abc", 3},
	} {
		if got := Distance(c.a, c.b); got != c.want {
			t.Errorf("%q and %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 s", 42 * time.Millisecond: "0 s", 250 * time.Millisecond: "0.3 s", 2 * time.Second: "2 s", 9960 * time.Millisecond: "10 s",
		12700 * time.Millisecond: "13 s", 10 * time.Minute: "600 s",
	} {
		if got := Seconds(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}

func TestWithoutDurations(t *testing.T) {
	text := fmt.Sprintf("2 of 3 nodes, b silent for %s, tried for %v, %v, %v and %v at 10.0.0.1:5s", Seconds(2*time.Second), 1500*time.Millisecond, 3*time.Microsecond, time.Hour+time.Second, time.Second)
	if got, want := WithoutDurations(text), "2 of 3 nodes, b silent for , tried for , ,  and  at 10.0.0.1:"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWrap(t *testing.T) {
	for text, want := range map[string]string{
		"":                "",
		"a b":             "a b",
		"aaa bbb ccc":     "aaa bbb\n  ccc",
		"averylongword b": "averylongword\n  b",
		"éééé éé é":       "éééé éé\n  é",
	} {
		if got := Wrap(text, 10, 2); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestRuns(t *testing.T) {
	for _, c := range []struct {
		numbers []int
		want    [][2]int
	}{
		{nil, nil},
		{[]int{7}, [][2]int{{7, 7}}},
		{[]int{0, 1, 2, 4, 8, 9}, [][2]int{{0, 2}, {4, 4}, {8, 9}}},
	} {
		var got [][2]int
		for first, last := range Runs(c.numbers) {
			got = append(got, [2]int{first, last})
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.numbers, got, c.want)
		}
	}
	for range Runs([]int{1, 3}) {
		break // the rest is not asked for
	}
}
