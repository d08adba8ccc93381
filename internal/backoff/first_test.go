package backoff

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestFirst: the first answer counts, later ones are given back, and without one all errors are
// returned.
func TestFirst(t *testing.T) {
	errFinal := errors.New("final")
	answered := make(chan struct{})
	try := func(ctx context.Context, entry string) (string, error) {
		switch entry {
		case "late":
			<-answered
			<-ctx.Done()
		case "first":
			close(answered)
		case "final":
			return "", errFinal
		default:
			return "", errors.New(entry)
		}
		return entry, nil
	}
	final := func(err error) bool { return errors.Is(err, errFinal) }
	for _, c := range []struct {
		list         []string
		answer       string
		late, failed string
	}{
		{[]string{"late", "a", "first", "b"}, "first", "[late]", "[]"},
		{[]string{"a", "b"}, "", "[]", "[a b]"},
		{[]string{"a", "final", "first"}, "", "[]", "[final]"},
		{nil, "", "[]", "[]"},
	} {
		late := []string{}
		answer, failed := First(t.Context(), slices.Clone(c.list), time.Millisecond, try, final, func(s string) { late = append(late, s) })
		if answer != c.answer || fmt.Sprint(late) != c.late || fmt.Sprint(failed) != c.failed {
			t.Errorf("%v: %q, %v, late %v", c.list, answer, failed, late)
		}
	}
}
