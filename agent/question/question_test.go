package question

import (
	"bytes"
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

// TestAnAgentThatComesLateAnswers: a question asked in a round's store before a node has
// connected to it is answered and heard, in order, and so is what comes after.
func TestAnAgentThatComesLateAnswers(t *testing.T) {
	s := store.NewMemory(store.NewEngine(store.Limits{}))
	defer s.Close()
	within := testkit.Within(t, testkit.Patience)
	serve := func(group int) (heard chan string) {
		heard = make(chan string, 8)
		ctx, cancel := context.WithCancel(within)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			Answer(ctx, s, group, func(_ context.Context, q Question) []byte {
				heard <- q.Kind + string(q.Text)
				if q.Kind == "ask" {
					return []byte(strconv.Itoa(group))
				}
				return nil
			})
		}()
		t.Cleanup(func() { cancel(); <-ended })
		return heard
	}
	early := serve(0)
	testkit.Must(Tell(within, s, "tell", []byte("a")))(t)
	asked := make(chan [][]byte)
	go func() {
		_, answers, err := Ask(within, s, 2, "ask", nil, testkit.Patience)
		if err != nil {
			t.Error(err)
		}
		asked <- answers
	}()
	testkit.Equal(t, <-early, "tella")
	testkit.Equal(t, <-early, "ask")
	late := serve(1) // while the question waits for it
	testkit.Equal(t, <-late, "tella")
	testkit.Equal(t, <-late, "ask")
	testkit.Equal(t, string(bytes.Join(<-asked, []byte(" "))), "0 1")
	testkit.Must(Tell(within, s, "tell", []byte("b")))(t)
	testkit.Equal(t, <-late, "tellb")
	testkit.Equal(t, <-early, "tellb")
}
