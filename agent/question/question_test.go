package question

import (
	"context"
	"strconv"
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

// TestAnswersGoOn: in a store that stays, what an earlier round has asked and told is over; in
// another store the numbers begin again, and what was asked there before is heard.
func TestAnswersGoOn(t *testing.T) {
	stays := store.NewMemory(store.NewEngine(store.Limits{}))
	defer stays.Close()
	fresh := store.NewMemory(store.NewEngine(store.Limits{}))
	defer fresh.Close()
	within := testkit.Within(t, testkit.Patience)
	for _, text := range []string{"a", "b", "c", "d"} {
		testkit.Must(Tell(within, fresh, "tell", []byte(text)))(t)
	}
	var at Heard
	for i, s := range []store.Store{stays, stays, fresh} {
		ctx, cancel := context.WithCancel(within)
		heard := make(chan string, 8)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			Answer(ctx, s, 0, &at, func(_ context.Context, q Question) []byte {
				heard <- q.Kind + string(q.Text)
				if q.Kind == "ask" {
					return []byte("answer")
				}
				return nil
			})
		}()
		if s == fresh {
			for _, want := range []string{"tella", "tellb", "tellc", "telld"} {
				testkit.Equal(t, <-heard, want)
			}
		}
		testkit.Must(Tell(ctx, s, "tell", []byte(strconv.Itoa(i))))(t)
		testkit.Equal(t, <-heard, "tell"+strconv.Itoa(i))
		_, answers, err := Ask(ctx, s, 1, "ask", nil, testkit.Patience)
		testkit.Check(t, err)
		testkit.Equal(t, string(answers[0]), "answer")
		testkit.Equal(t, <-heard, "ask")
		cancel()
		<-ended
		testkit.Equal(t, at.number, []int64{2, 4, 6}[i])
	}
}
