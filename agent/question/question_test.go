package question

import (
	"testing"

	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// TestQuestionsAreNumberedWithoutGaps: agents wait for the next number, so that one which is
// left out would be waited for by all, for ever. Who asks does not rely on what is said of the
// last one.
func TestQuestionsAreNumberedWithoutGaps(t *testing.T) {
	s := store.NewMemory(store.NewEngine(store.Limits{}))
	defer s.Close()
	ctx := testkit.Within(t, testkit.Patience)
	for want, last := range []string{"", "1", "0", "-1", "77", "x", "2"} {
		if last != "" {
			testkit.Check(t, s.Set(ctx, keyLast, []byte(last)))
		}
		testkit.Equal(t, testkit.Must(Tell(ctx, s, "kind", nil))(t), int64(want)+1)
	}
}
