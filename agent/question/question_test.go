package question

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
			Answer(ctx, s, group, Agent{
				Hear: func(_ context.Context, q Question) bool {
					if q.Kind == "tell" {
						heard <- q.Kind + string(q.Text)
					}
					return q.Kind == "tell"
				},
				Answer: func(_ context.Context, q Question) ([]byte, bool) {
					heard <- q.Kind + string(q.Text)
					return []byte(strconv.Itoa(group)), true
				},
			})
		}()
		t.Cleanup(func() { cancel(); <-ended })
		return heard
	}
	early := serve(0)
	testkit.Must(Tell(within, s, "tell", []byte("a")))(t)
	asked := make(chan []*string)
	go func() {
		_, answers, err := Ask(within, s, 2, "ask", nil, testkit.Patience, asText)
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
	answers := <-asked
	testkit.Equal(t, *answers[0]+" "+*answers[1], "0 1")
	testkit.Must(Tell(within, s, "tell", []byte("b")))(t)
	testkit.Equal(t, <-late, "tellb")
	testkit.Equal(t, <-early, "tellb")
}

// TestAnAgentThatRestsHears: a message reaches an agent that has just answered a question, and may not answer the
// next one yet.
func TestAnAgentThatRestsHears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory(store.NewEngine(store.Limits{}))
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		begun := time.Now()
		var got []string
		note := func(what string) { got = append(got, what+" "+time.Since(begun).String()) }
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			Answer(ctx, s, 0, Agent{
				Hear: func(_ context.Context, q Question) bool {
					if q.Kind == "tell" {
						note(q.Kind)
					}
					return q.Kind == "tell"
				},
				Answer: func(_ context.Context, q Question) ([]byte, bool) { note(q.Kind); return nil, false },
			})
		}()
		for _, kind := range []string{"ask", "tell", "ask", "tell"} {
			testkit.Must(Tell(ctx, s, kind, nil))(t)
			synctest.Wait()
		}
		time.Sleep(rest) // which takes no time here
		synctest.Wait()
		testkit.Equal(t, strings.Join(got, ", "), "ask 0s, tell 0s, tell 0s, ask 200ms")
		cancel()
		<-ended
	})
}

func asText(text []byte) string { return string(text) }

// TestQuestionsDoNotHoldEachOtherUp: an agent that finds many questions in the store answers the newest
// first, an equal one with it, and one of another kind in between; it passes on every message, and
// drops the oldest questions. A question whose inquirer has given up is not answered.
func TestQuestionsDoNotHoldEachOtherUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory(store.NewEngine(store.Limits{}))
		defer s.Close()
		ctx, cancel := context.WithCancel(context.Background())
		ask := func(kind, text string) int64 { return testkit.Must(Tell(ctx, s, kind, []byte(text)))(t) }
		oldest := ask("stacks", "other")
		ask("hang", "1")
		var flood int64
		for range 1538 {
			flood = ask("stacks", "")
		}
		output := ask("logs", "mine")
		ask("hang", "2")
		limited, end := context.WithTimeout(ctx, time.Millisecond) // nobody answers yet
		_, _, err := Ask(limited, s, 1, "given up", nil, time.Second, asText)
		testkit.Check(t, err)
		end()
		newest := ask("stacks", "")

		var heard []string
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			Answer(ctx, s, 0, Agent{
				Hear: func(_ context.Context, q Question) bool {
					if q.Kind == "hang" {
						heard = append(heard, "hang "+string(q.Text))
					}
					return q.Kind == "hang"
				},
				Answer: func(_ context.Context, q Question) ([]byte, bool) {
					heard = append(heard, q.Kind+" "+string(q.Text))
					return []byte("x"), true
				},
			})
		}()
		time.Sleep(time.Minute)
		cancel()
		<-answered
		testkit.Equal(t, strings.Join(heard, ", "), "hang 1, hang 2, stacks , logs mine")
		for number, want := range map[int64]bool{newest: true, flood: true, flood - maxWaiting/2: true, output: true, flood - maxWaiting: false, oldest: false} {
			if there := testkit.Must(s.Check(context.Background(), []string{answerKey(number, 0)}))(t); there != want {
				t.Errorf("question %d is answered: %v", number, there)
			}
		}
	})
}
